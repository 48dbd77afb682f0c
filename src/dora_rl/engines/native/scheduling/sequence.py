"""One request on its way: its tokens, how far its KV reaches, and where that lies.

Counts may run ahead of tokens: the last `num_drawing` of `num_tokens` are being drawn and not known yet. KV
is planned for `num_computed` tokens, never more than there are or will be. What every step asks for is a
field, not a property: a thousand sequences take part in a step.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from dora_rl.engines.native.scheduling.prefixes import LineageKey, PrefixKey
from dora_rl.engines.native.scheduling.turns import Priority
from dora_rl.engines.requests import Request, Stopping


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """The state of a request inside a scheduler."""

    request: Request
    """The request as it would be submitted to begin this turn; between turns, the next."""
    priority: Priority
    serial: int
    tokens: list[int]
    """All known token ids: prompt, continued, drawn, from the environment."""
    max_tokens: int
    """The length in tokens at which the turn ends."""
    turn_start: int
    """How many tokens there were when the turn began."""
    logprobs: list[float] = field(default_factory=list)
    """Logprobs of the tokens drawn in this turn."""
    cut_logprobs: list[float] = field(default_factory=list)
    """Logprobs of this turn's tokens after the cut; empty where nothing is cut."""
    experts: list[bytes] = field(default_factory=list)
    """The experts behind each draw of this turn; empty where they are not recorded."""
    num_tokens: int = field(init=False)
    """Number of tokens, both known and being drawn."""
    num_computed: int = 0
    num_lost: int = 0
    """Number of first tokens whose KV existed once, here or elsewhere: computing it is computing it again."""
    blocks: list[int] = field(default_factory=list)
    slot: int | None = None
    """The sequence's slot on the device; None while it does not run."""
    ticket: int | None = None
    """The ticket under which the sequence's KV is parked on the host; None where it is not."""
    is_held: bool = False
    """Whether the sequence is between turns."""
    is_cut: bool = field(init=False)
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end a turn."""
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.num_tokens = len(self.tokens)
        self.is_cut = self.request.sampling.is_cut

    @property
    def num_drawing(self) -> int:
        """Number of tokens that are being drawn and not known yet."""
        return self.num_tokens - len(self.tokens)

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens whose KV is still to be computed before the next draw."""
        return self.num_tokens - self.num_computed

    @property
    def is_runnable(self) -> bool:
        """Whether a step can advance this sequence."""
        return self.num_tokens < self.max_tokens

    @property
    def is_computing_prefix(self) -> bool:
        """Whether the sequence is still computing the prompt of its group."""
        return self.prefix_key is not None and self.num_computed < self.num_shareable

    @property
    def prefix_key(self) -> PrefixKey | None:
        """The key under which this sequence's prompt is shared."""
        group = self.request.group
        return None if group is None else (self.request.version, group)

    @property
    def lineage_key(self) -> LineageKey | None:
        """The key under which requests are found that may begin like this one."""
        lineage = self.request.lineage
        return None if lineage is None else (self.request.version, lineage)

    @property
    def num_shareable(self) -> int:
        """Number of prompt tokens that members of a group need compute only once."""
        return len(self.request.prompt) - 1

    def accept(self, num_right: int) -> None:
        """Count guesses that were drawn as tokens, and their KV, unless it left the device since."""
        self.num_tokens += num_right
        if self.slot is not None:
            self.num_computed += num_right

    def resume(self, tokens: tuple[int, ...], stopping: Stopping, max_tokens: int) -> None:
        """Begin the next turn behind the environment's tokens."""
        self.tokens += tokens
        self.request = replace(self.request, continued=self._continued, stopping=stopping)
        self.num_tokens = self.turn_start = len(self.tokens)
        self.max_tokens, self.is_held = max_tokens, False

    def hold(self, serial: int) -> None:
        """End the turn and keep the sequence; the next turn has another serial."""
        self.is_held, self.serial, self.num_tokens = True, serial, len(self.tokens)
        # Steps planned ahead may have gone beyond the end; and the next draw needs a token to compute.
        self.num_computed = min(self.num_computed, len(self.tokens) - 1)
        self.logprobs, self.cut_logprobs, self.experts = [], [], []
        self.turn_start = len(self.tokens)
        self.request = replace(self.request, continued=self._continued)

    @property
    def _continued(self) -> tuple[int, ...]:
        """All known tokens behind the prompt."""
        return tuple(self.tokens[len(self.request.prompt) :])
