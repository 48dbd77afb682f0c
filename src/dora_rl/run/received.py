"""What a turn of the loop receives: inputs for control, payloads for the journal, effects to be carried out.

    message ──> inputs, payloads   durable, and decided about
            └─> effects            carried out once they are durable, before the decisions

An effect follows from a message without a decision of control. It comes before decisions because those may
end what it continues: a request is aborted right after it arrived, a checkpoint comes before the next batch.
"""

from msgspec import Struct, field

from dora_rl.core.inputs import Input
from dora_rl.core.record import Record
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.store.journal_records import AnyPayload


class Effect(Record, frozen=True):
    """Something to be done because of a message, without a decision of control."""


class ScoreTrajectory(Effect, frozen=True):
    """A trajectory ended, and all its tokens are journalled: ask for its reward."""

    trajectory: int
    group: int
    row: int
    attempt: int
    tokens: tuple[int, ...]


class ContinueRequest(Effect, frozen=True):
    """A request moved without its KV: its new instance starts it behind its journalled tokens."""

    trajectory: int
    request: int


class DeliverKv(Effect, frozen=True):
    """A request left with its KV in a file: its new instance reads that file."""

    instance: int
    request: int
    path: str


class AnswerOperation(Effect, frozen=True):
    """A turn of an episode ended, or a side effect was had, and that is journalled: it goes on."""

    trajectory: int
    branch: int
    number: int


class AnswerRole(Effect, frozen=True):
    """The turn of a role was generated: whoever awaits it hears what was said."""

    question: int
    tokens: tuple[int, ...]
    finish: TurnFinish


class ServeStore(Effect, frozen=True):
    """The trainer is ready, so the newest version is in the store: whoever waits for it may load it."""


class RecordStep(Effect, frozen=True):
    """The journal has the version of the step in progress: the trainer may write it, or train on."""

    is_checkpoint_due: bool


class CoverBatches(Effect, frozen=True):
    """A checkpoint of this version is durable: the journal may drop tokens that no kept checkpoint needs."""

    version: int
    oldest: int
    """The oldest version that training may still be started from."""


AnyEffect = (
    ScoreTrajectory
    | ContinueRequest
    | DeliverKv
    | AnswerOperation
    | AnswerRole
    | ServeStore
    | RecordStep
    | CoverBatches
)


class Received(Struct, kw_only=True):
    """Everything that came in since the last turn of the loop, in order."""

    inputs: list[Input] = field(default_factory=list)
    payloads: list[AnyPayload] = field(default_factory=list)
    effects: list[AnyEffect] = field(default_factory=list)

    def __iadd__(self, other: "Received") -> "Received":
        self.inputs += other.inputs
        self.payloads += other.payloads
        self.effects += other.effects
        return self
