"""What the journal is told beside inputs and decisions, and what it gives back. Plain data.

Payloads are what control does not know: the tokens behind its counts, the values behind its rewards. They
name the attempt they belong to; those of an attempt that is over are left out when they come late.
"""

from msgspec import field

from dora_rl.core.record import Record
from dora_rl.core.stream_key import StreamKey
from dora_rl.store.errors import Contradiction

# --- told ---------------------------------------------------------------------------------------


class Payload(Record, frozen=True):
    """Something to keep, recorded together with the inputs that speak of it."""


class PromptTokens(Payload, frozen=True):
    """The prompt of a group that starts now; due together with its first Start."""

    group: int
    tokens: tuple[int, ...]


class Progress(Payload, frozen=True):
    """The next tokens of a trajectory, drawn under one version or appended by its environment."""

    trajectory: int
    attempt: int
    start: int
    """How many tokens after the prompt came before these."""
    tokens: tuple[int, ...]
    version: int | None
    """That drew them; None: they are the environment's."""
    logprobs: tuple[float, ...] = ()
    """Of each drawn token at the sampling temperature; kept as float32."""
    cut_logprobs: tuple[float, ...] = ()
    """Of each drawn token after top-k, top-p and min-p, where one of them is on."""

    def __post_init__(self) -> None:
        num_drawn = 0 if self.version is None else len(self.tokens)
        if len(self.logprobs) != num_drawn or len(self.cut_logprobs) not in (0, num_drawn):
            raise Contradiction(
                f"trajectory {self.trajectory}: {len(self.logprobs)} logprobs and {len(self.cut_logprobs)} "
                f"after the cut for {num_drawn} drawn tokens"
            )


class Rewound(Payload, frozen=True):
    """Generation goes on after the first `num_tokens` tokens; what was recorded beyond is void."""

    trajectory: int
    attempt: int
    num_tokens: int


class Completed(Payload, frozen=True):
    """All tokens of the trajectory are recorded; due together with its Ended."""

    trajectory: int
    attempt: int
    num_tokens: int
    is_truncated: bool = False


class Rewarded(Payload, frozen=True):
    """What a finished trajectory is worth; due together with its Scored."""

    trajectory: int
    attempt: int
    reward: float | None
    values: dict[str, float | None] = field(default_factory=dict)
    """Of each reward function; None where one does not apply."""


AnyPayload = PromptTokens | Progress | Rewound | Completed | Rewarded

# --- given back ---------------------------------------------------------------------------------


class Stretch(Record, frozen=True):
    """Tokens from `start` on up to the next stretch: drawn under `version`, or by the environment (None)."""

    start: int
    version: int | None


class Response(Record, frozen=True):
    """The tokens of a trajectory after its prompt."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of the drawn tokens only."""
    cut_logprobs: tuple[float, ...] = ()
    """Of the drawn tokens, where a cut was on; else empty."""
    stretches: tuple[Stretch, ...] = ()

    @property
    def is_policy(self) -> tuple[bool, ...]:
        """Of each token: was it drawn?"""
        ends = [*(stretch.start for stretch in self.stretches[1:]), len(self.tokens)]
        return tuple(
            stretch.version is not None
            for stretch, end in zip(self.stretches, ends, strict=False)
            for _ in range(end - stretch.start)
        )


class Unfinished(Record, frozen=True):
    """A trajectory that was being generated: everything needed to go on with it elsewhere."""

    trajectory: int
    group: int
    version: int
    """Of its last Start."""
    key: StreamKey
    prompt: tuple[int, ...]
    response: Response
    is_evaluation: bool


class WholeTrajectory(Record, frozen=True):
    """A trajectory with all its tokens, scored or not."""

    trajectory: int
    group: int
    version: int
    key: StreamKey
    prompt: tuple[int, ...]
    response: Response
    is_truncated: bool
    is_evaluation: bool
    reward: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)


class FinishedGroup(Record, frozen=True):
    """One prompt and the scored trajectories that are trained on."""

    group: int
    version: int
    members: tuple[WholeTrajectory, ...]


class TakenBatch(Record, frozen=True):
    """What one train step consumed or is consuming."""

    number: int
    groups: tuple[FinishedGroup, ...]
    """In the order control took them."""
    is_published: bool
    """Whether version `number + 1` is public: then it is trained again without publishing."""


class Summary(Record, frozen=True):
    """What stays of a trajectory when its tokens are gone."""

    trajectory: int
    group: int
    version: int
    attempt: int
    state: str
    """`running`, `ended`, `scored` or `closed`."""
    num_tokens: int
    is_truncated: bool
    is_evaluation: bool
    batch: int | None
    outcome: str | None
    reward: float | None
    values: dict[str, float | None]
