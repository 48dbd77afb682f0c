"""Everything the control plane can be told.

Owns the records of inputs alone. The control plane is a deterministic function of one ordered stream of
them; each carries the time it was observed at, so replaying a stream needs no clock. `clock` is an
instance's decode clock: a request that decodes without interruption gains one token for each unit of it.
"""

from msgspec import field

from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.record import Record


class Input(Record, frozen=True, tag=True, tag_field="input"):
    """Something that happened, seen at time `at` (seconds since the run began)."""

    at: float


# --- instances ----------------------------------------------------------------------------------


class InstanceJoined(Input, frozen=True):
    """An instance is ready to generate, for the first time or after a restart."""

    instance: int
    spec: InstanceSpec
    version: int = 0
    """The version that the instance holds already."""


class InstanceLost(Input, frozen=True):
    """An instance died or is given up: what it carried is gone."""

    instance: int
    reason: str


class LoadReport(Input, frozen=True):
    """A sign of life of an instance: its decode clock, tokens of KV in use, seconds a decode step."""

    instance: int
    clock: float
    kv_tokens: int
    step_s: float


class KvPressure(Input, frozen=True):
    """An instance's KV cache is nearly full; it will preempt by itself if nothing is moved."""

    instance: int
    clock: float
    kv_tokens: int


class Loaded(Input, frozen=True):
    """An instance now serves `version` (and dropped what it was told to drop)."""

    instance: int
    version: int


class Lent(Input, frozen=True):
    """An elastic instance stopped generating: its devices are with the trainer."""

    instance: int


class Returned(Input, frozen=True):
    """An elastic instance has its devices back from the trainer and generates again."""

    instance: int


# --- trajectories -------------------------------------------------------------------------------


class Ended(Input, frozen=True):
    """A trajectory generated its last token. `tokens` counts what the policy generated."""

    instance: int
    trajectory: int
    tokens: int
    clock: float
    kv_tokens: int
    truncated: bool = False


class TurnEnded(Input, frozen=True):
    """A trajectory handed over to its environment; its KV stays where it is."""

    instance: int
    trajectory: int
    tokens: int
    clock: float
    kv_tokens: int


class EnvironmentReplied(Input, frozen=True, omit_defaults=True):
    """An environment ended its turn: its trajectory goes on."""

    trajectory: int
    tokens: int
    """Number of environment tokens to append, to what is held, before the policy goes on."""
    context: int | None = None
    """Tokens in all of another branch, or of another attempt, whose turn it is: what is held is of no use."""


class EpisodeEnded(Input, frozen=True, omit_defaults=True):
    """An episode returned, or was cut: what it holds is free, and its reward follows as `Scored`."""

    trajectory: int
    tokens: int
    """Tokens that the policy drew, over all branches."""
    truncated: bool = False


class EnvironmentFailed(Input, frozen=True):
    """The environment of a trajectory broke: another attempt, or the end of the trajectory."""

    trajectory: int
    reason: str


class Refused(Input, frozen=True):
    """An engine cannot carry out the request of a trajectory: another attempt, or its end."""

    trajectory: int
    reason: str


class RewardFault(Record, frozen=True):
    """A failure of a reward function, which gave no usable value for a trajectory."""

    function: str
    reason: str
    """Kind of the failure: `raised`, `time limit` and so on."""
    detail: str
    """The failure in one line; the traceback is in the run's logs."""


class Scored(Input, frozen=True, omit_defaults=True):
    """The reward of an ended trajectory; None when no reward function applied, or one failed."""

    trajectory: int
    reward: float | None
    failures: tuple[RewardFault, ...] = ()
    values: dict[str, float | None] = field(default_factory=dict)
    """Each reward function's own value, without its weight, by its name; for those who watch."""


class Moved(Input, frozen=True):
    """A request arrived on its new instance, with its KV or prefilled again."""

    trajectory: int
    source: int
    target: int
    kv_bytes: int


class MoveFailed(Input, frozen=True):
    """A request did not arrive on its new instance."""

    trajectory: int
    reason: str


class RoleTurnAsked(Input, frozen=True, omit_defaults=True):
    """An episode awaits the turn of a role that a frozen version plays: generate it, counted in no law."""

    question: int
    """The number of the turn, which no other has that is awaited."""
    version: int
    """The frozen version that plays the role."""
    tokens: int
    """Tokens of the role's whole context."""
    trajectory: int | None = None
    """The trajectory that awaits it, whose deadline it inherits; None before its group is admitted."""


class RoleTurnDropped(Input, frozen=True):
    """Nobody awaits the turn of a role any more: its episode is over, or begins again."""

    question: int


# --- prompts -------------------------------------------------------------------------------------


class QueuedPrompt(Record, frozen=True, array_like=True, gc=False):
    """A row's prompt as control knows it. With the run's seed, (epoch, row) keys the draws of its group."""

    epoch: int
    """How often this row was offered before."""
    row: int
    tokens: int


class PromptsOffered(Input, frozen=True, omit_defaults=True):
    """Prompts to start next, in this order, behind those that were offered before."""

    prompts: tuple[QueuedPrompt, ...]
    is_last: bool = False
    """Whether the source is exhausted: no prompt comes after these."""


class Opened(Input, frozen=True, omit_defaults=True):
    """The environments of all members of a queued prompt are reset: its group may start."""

    epoch: int
    row: int
    tokens: int
    """Tokens that the members' first contexts have in common: the group's prompt, as it is journalled."""
    is_evaluation: bool = False


class OpenFailed(Input, frozen=True, omit_defaults=True):
    """The environments of a queued prompt were given up before they were reset: the prompt is dropped."""

    epoch: int
    row: int
    reason: str
    is_evaluation: bool = False


# --- trainer and run ----------------------------------------------------------------------------


class Trained(Input, frozen=True):
    """The step in flight is computed: devices lent for it are free, but its version is not durable yet."""


class Published(Input, frozen=True, omit_defaults=True):
    """Version `version` is durable and can be loaded: the step that trained it is over."""

    version: int
    train_s: float
    ahead_s: float = 0.0
    """Seconds of training on groups that were handed over before the batch was taken; for those who watch."""
    publish_s: float = 0.0
    """Seconds from the end of training until the version was durable; for those who watch."""
    instances: dict[int, InstanceSeconds] = field(default_factory=dict)
    """What each instance last said of its own seconds, by its number; for those who watch."""


class StepLost(Input, frozen=True):
    """The trainer lost the step in flight; its batch must be taken again."""

    reason: str


class StepsExtended(Input, frozen=True):
    """The run was given more train steps: `steps` in all."""

    steps: int


class EvaluationAsked(Input, frozen=True):
    """Generate an evaluation trajectory for each of `prompts` with the newest version."""

    prompts: tuple[QueuedPrompt, ...]


class Tick(Input, frozen=True, omit_defaults=True):
    """Time passed: a sign for what is due by the clock alone."""

    instances: dict[int, InstanceSeconds] = field(default_factory=dict)
    """What each instance last said of its own seconds, by its number, in a run of episodes: the first step
    of one may take long, and what KV is worth that waits has to be known before."""


# --- for the record: nothing is decided about these ---------------------------------------------


class Fault(Input, frozen=True):
    """A worker of any kind died or hung; recorded only."""

    worker: str
    reason: str
    is_restarted: bool = True


class Replayed(Input, frozen=True):
    """A restarted trainer trained on the batch of a published step once more; recorded only."""

    batch: int
    num_different: int
    """Number of weights that differ from those published."""


class CheckpointDamaged(Input, frozen=True):
    """A trainer that started could not use a checkpoint and went on from an older version; recorded only."""

    problem: str
    """What is wrong with the checkpoint, naming its file."""
    version: int
    """The version that the trainer went on from."""


AnyInput = (
    InstanceJoined
    | InstanceLost
    | LoadReport
    | KvPressure
    | Loaded
    | Lent
    | Returned
    | Ended
    | TurnEnded
    | EnvironmentReplied
    | EnvironmentFailed
    | EpisodeEnded
    | Refused
    | RoleTurnAsked
    | RoleTurnDropped
    | Scored
    | Moved
    | MoveFailed
    | PromptsOffered
    | Opened
    | OpenFailed
    | Trained
    | Published
    | StepLost
    | StepsExtended
    | EvaluationAsked
    | Fault
    | Replayed
    | CheckpointDamaged
    | Tick
)
