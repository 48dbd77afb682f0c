"""What the journal records beside inputs and decisions, and what it gives back. Plain data.

Payloads are what control does not know: the tokens behind its counts, the values behind its rewards. They
name the attempt they belong to; those of an attempt that is over are left out when they come late.
"""

from msgspec import field

from dora_rl.core.record import PlainValue, Record
from dora_rl.core.stream_key import StreamKey
from dora_rl.store.errors import Contradiction

# --- told ---------------------------------------------------------------------------------------


class Payload(Record, frozen=True):
    """Data to record together with the inputs it belongs to, beyond what control knows."""


class PromptTokens(Payload, frozen=True):
    """The prompt of a group that starts now, recorded together with its first Start."""

    group: int
    tokens: tuple[int, ...]


class StreamedRow(Payload, frozen=True):
    """A row that was read while the run was going, recorded together with the offer of its prompt."""

    row: int
    content: bytes
    """The row with its prompt and columns, as whoever runs writes it."""


class Progress(Payload, frozen=True):
    """The next tokens of a trajectory, drawn under one version or appended by its environment.

    The last ones, or none where all are recorded, come together with its Ended.
    """

    trajectory: int
    attempt: int
    start: int
    """Number of tokens after the prompt that came before these."""
    tokens: tuple[int, ...]
    version: int | None
    """The version that drew the tokens; None if they are the environment's."""
    logprobs: tuple[float, ...] = ()
    """Logprob of each drawn token at the sampling temperature; kept as float32."""
    cut_logprobs: tuple[float, ...] = ()
    """Logprob of each drawn token after top-k, top-p and min-p, where one of them is on."""
    is_last: bool = False
    """Whether no token comes after these: the trajectory ended."""
    is_truncated: bool = False
    """Whether the trajectory ended at the length cap."""

    def __post_init__(self) -> None:
        num_drawn = 0 if self.version is None else len(self.tokens)
        if len(self.logprobs) != num_drawn or len(self.cut_logprobs) not in (0, num_drawn):
            raise Contradiction(
                f"trajectory {self.trajectory}: {len(self.logprobs)} logprobs and {len(self.cut_logprobs)} "
                f"after the cut for {num_drawn} drawn tokens"
            )


class Rewound(Payload, frozen=True):
    """Generation goes on after the first `num_tokens` tokens; those recorded beyond are void."""

    trajectory: int
    attempt: int
    num_tokens: int


class Rewarded(Payload, frozen=True):
    """The reward of an ended trajectory; comes together with its Scored."""

    trajectory: int
    attempt: int
    reward: float | None
    values: dict[str, float | None] = field(default_factory=dict)
    """Value of each reward function by name; None where one does not apply."""
    extras: dict[str, PlainValue] = field(default_factory=dict)
    """What reward functions noted about the trajectory, by column."""


class StepMetrics(Payload, frozen=True):
    """What was measured of a train step, recorded together with its Published."""

    version: int
    values: dict[str, float | None]


AnyPayload = PromptTokens | StreamedRow | Progress | Rewound | Rewarded | StepMetrics


class StoredScore(Record, frozen=True, array_like=True):
    """What is kept of a Rewarded; earlier versions wrote no extras."""

    reward: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    extras: dict[str, PlainValue] = field(default_factory=dict)


# --- given back ---------------------------------------------------------------------------------


class Stretch(Record, frozen=True):
    """Tokens of a response from `start` to the next stretch: of one version, or the environment's (None)."""

    start: int
    version: int | None


class Response(Record, frozen=True):
    """The tokens of a trajectory after its prompt."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Logprobs of the drawn tokens only, at the sampling temperature."""
    cut_logprobs: tuple[float, ...] = ()
    """Logprobs of the drawn tokens after top-k, top-p and min-p; empty where none of them was on."""
    stretches: tuple[Stretch, ...] = ()

    @property
    def is_policy(self) -> tuple[bool, ...]:
        """Whether the policy drew the token, for each token: if not, it is the environment's."""
        return tuple(version is not None for version in self.versions)

    @property
    def versions(self) -> tuple[int | None, ...]:
        """The version that drew the token, for each token; None where it is the environment's."""
        ends = [*(stretch.start for stretch in self.stretches[1:]), len(self.tokens)]
        return tuple(
            stretch.version
            for stretch, end in zip(self.stretches, ends, strict=False)
            for _ in range(end - stretch.start)
        )


class JournalledTrajectory(Record, frozen=True):
    """A trajectory with the tokens recorded of it: all, or those to go on behind while it is generated."""

    trajectory: int
    group: int
    version: int
    """The version of the trajectory's last Start."""
    key: StreamKey
    prompt: tuple[int, ...]
    response: Response
    is_truncated: bool
    is_evaluation: bool
    reward: float | None = None
    """The reward, once it is scored; None also where no function applied, or one failed."""
    values: dict[str, float | None] = field(default_factory=dict)
    extras: dict[str, PlainValue] = field(default_factory=dict)


class FinishedGroup(Record, frozen=True):
    """One prompt and its scored trajectories, to be trained on."""

    group: int
    version: int
    members: tuple[JournalledTrajectory, ...]


class TakenBatch(Record, frozen=True):
    """The groups that one train step consumed or is consuming."""

    number: int
    groups: tuple[FinishedGroup, ...]
    """Groups of the batch in the order control took them."""
    is_published: bool
    """Whether version `number + 1` is published: the batch is then trained again without publishing."""


class Summary(Record, frozen=True):
    """What the journal keeps of a trajectory when its tokens are gone."""

    trajectory: int
    group: int
    version: int
    attempt: int
    state: str
    """State of the trajectory: `running`, `ended`, `scored` or `closed`."""
    num_tokens: int
    is_truncated: bool
    is_evaluation: bool
    batch: int | None
    """Number of the batch that took the trajectory's group; None if none did."""
    outcome: str | None
    reward: float | None
    values: dict[str, float | None]
