"""What the journal records beside inputs and decisions, and what it gives back. Plain data.

Payloads are what control does not know: the tokens behind its counts, the values behind its rewards. They
name the attempt they belong to; those of an attempt that is over are left out when they come late.
"""

from msgspec import field

from dora_rl.core.record import PlainValue, Record
from dora_rl.core.stream_key import StreamKey
from dora_rl.core.turn_finish import TurnFinish
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
    experts: tuple[bytes, ...] = ()
    """The experts behind each drawn token, where the engine recorded them."""
    is_last: bool = False
    """Whether no token comes after these: the trajectory ended."""
    is_truncated: bool = False
    """Whether the trajectory ended at the length cap."""
    branch: int = 0
    """The branch of the episode; one other than 0 has no prompt, and its context comes first, from 0 on."""
    is_trained: bool = True
    """Whether what is drawn in the branch is trained on, which its context says for all of it."""

    def __post_init__(self) -> None:
        if self.branch == 0 and not self.is_trained:
            raise Contradiction(f"trajectory {self.trajectory}: its first branch is always trained on")
        num_drawn = 0 if self.version is None else len(self.tokens)
        if len(self.experts) not in (0, num_drawn):
            raise Contradiction(
                f"trajectory {self.trajectory}: experts of {len(self.experts)} of {num_drawn} drawn tokens"
            )
        if len(self.logprobs) != num_drawn or len(self.cut_logprobs) not in (0, num_drawn):
            raise Contradiction(
                f"trajectory {self.trajectory}: {len(self.logprobs)} logprobs and {len(self.cut_logprobs)} "
                f"after the cut for {num_drawn} drawn tokens"
            )


class Rewound(Payload, frozen=True):
    """Generation goes on after the first `num_tokens` tokens; those recorded beyond are void.

    Of an episode, in its first branch, before any turn ended.
    """

    trajectory: int
    attempt: int
    num_tokens: int


class TurnFinished(Payload, frozen=True):
    """A turn of an episode is over, and all its tokens are recorded; comes together with its TurnEnded."""

    trajectory: int
    attempt: int
    finish: TurnFinish
    branch: int = 0


class OnceValue(Payload, frozen=True):
    """What a side effect of an episode gave: it is not had again in this attempt."""

    trajectory: int
    attempt: int
    branch: int
    number: int
    """The place of the side effect among the turns and side effects of its branch."""
    key: str
    value: bytes


class EpisodeOver(Payload, frozen=True):
    """An episode took its last turn; comes together with its EpisodeEnded."""

    trajectory: int
    attempt: int
    is_truncated: bool = False


class EarlyOnce(Record, frozen=True, array_like=True):
    """What a side effect gave that a member had before its first turn, while it had no trajectory yet."""

    branch: int
    number: int
    key: str
    value: bytes


class EpisodeContexts(Payload, frozen=True):
    """The first context of each member of a queued prompt; comes together with its Opened.

    Kept until the prompt is admitted: from then on they are the prompt and the members' first tokens.
    """

    epoch: int
    row: int
    contexts: tuple[tuple[int, ...], ...]
    is_evaluation: bool = False
    onces: tuple[tuple[EarlyOnce, ...], ...] = ()
    """Side effects of each member so far; empty where none had any."""


class TurnReward(Record, frozen=True, array_like=True):
    """What an episode gave for one of its turns, named by its branch and its place in it."""

    branch: int
    turn: int
    reward: float


class Rewarded(Payload, frozen=True):
    """The reward of an ended trajectory; comes together with its Scored."""

    trajectory: int
    attempt: int
    reward: float | None
    values: dict[str, float | None] = field(default_factory=dict)
    """Value of each reward function by name; None where one does not apply."""
    extras: dict[str, PlainValue] = field(default_factory=dict)
    """What reward functions noted about the trajectory, by column."""
    turns: tuple[TurnReward, ...] = ()
    """What an episode gave for single turns, which is part of its reward."""


class StepMetrics(Payload, frozen=True):
    """What was measured of a train step, recorded together with its Published."""

    version: int
    values: dict[str, float | None]


AnyPayload = (
    PromptTokens
    | StreamedRow
    | EpisodeContexts
    | Progress
    | Rewound
    | TurnFinished
    | OnceValue
    | EpisodeOver
    | Rewarded
    | StepMetrics
)


class StoredScore(Record, frozen=True, array_like=True):
    """What is kept of a Rewarded; earlier versions wrote no extras and no turns."""

    reward: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    extras: dict[str, PlainValue] = field(default_factory=dict)
    turns: tuple[TurnReward, ...] = ()


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
    experts: tuple[bytes, ...] = ()
    """The experts behind each drawn token, empty where they are not recorded; empty where none are."""
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


class JournalledTurn(Record, frozen=True):
    """How one turn of an episode ended; the n-th of a branch is of its n-th stretch of drawn tokens."""

    finish: TurnFinish
    order: int
    """The place of the turn among all turns of the episode, whatever their branches."""
    reward: float | None = None
    """What the episode gave for the turn; None where it gave nothing, or is not scored."""


class JournalledBranch(Record, frozen=True):
    """One branch of an episode: a sequence of tokens that the engine saw."""

    number: int
    response: Response
    """The tokens behind the prompt; a branch other than 0 has none, and begins with its context."""
    turns: tuple[JournalledTurn, ...] = ()
    is_trained: bool = True
    """Whether what is drawn in it is trained on."""


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
    turns: tuple[JournalledTurn, ...] = ()
    """The turns of an episode's first branch that are over; its tokens are the response."""
    branches: tuple[JournalledBranch, ...] = ()
    """The other branches of an episode."""
    onces: tuple[OnceValue, ...] = ()
    """What the episode's side effects gave so far."""

    @property
    def every_branch(self) -> tuple[JournalledBranch, ...]:
        """All branches of an episode, the first one first."""
        return (JournalledBranch(number=0, response=self.response, turns=self.turns), *self.branches)


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
