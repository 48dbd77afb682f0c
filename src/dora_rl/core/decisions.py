"""Everything the control plane can decide. Executors carry these out, live or simulated."""

from dora_rl.core.record import Record


class Decision(Record, frozen=True, tag=True, tag_field="decision"):
    """Something to do now."""


# --- requests on instances ----------------------------------------------------------------------


class Start(Decision, frozen=True):
    """Generate a trajectory on an instance, under the version its group is pinned to.

    The random stream is keyed by (epoch, row, member, attempt), so it does not depend on the place.
    """

    instance: int
    version: int
    trajectory: int
    group: int
    epoch: int
    row: int
    member: int
    attempt: int
    prompt_tokens: int
    generated_tokens: int = 0
    """Tokens that exist already, from before a crash or an interruption: prefill them too."""
    evaluation: bool = False


class Resume(Decision, frozen=True):
    """The environment replied: append its tokens to the KV kept on this instance, and go on."""

    instance: int
    trajectory: int
    appended_tokens: int


class Move(Decision, frozen=True):
    """Take a request to another instance of the same version; with its KV, or to be prefilled there."""

    trajectory: int
    version: int
    source: int
    target: int
    with_kv: bool


class Park(Decision, frozen=True):
    """Take a request's KV to host memory; it goes on by itself when there is room again."""

    instance: int
    trajectory: int


class Evict(Decision, frozen=True):
    """Drop the KV of a request whose environment has the turn; it is prefilled again when it goes on."""

    instance: int
    trajectory: int


class Abort(Decision, frozen=True):
    """Stop generating this trajectory and free what it holds; no more is heard of this request."""

    instance: int
    trajectory: int
    reason: str


class Interrupt(Decision, frozen=True):
    """Drop the KV of everything on this instance and go on with other weights (schedule `partial`)."""

    instance: int
    version: int


# --- instances ----------------------------------------------------------------------------------


class Load(Decision, frozen=True):
    """Make `version` resident, dropping `drop` first, once the requests moved away have left."""

    instance: int
    version: int
    drop: tuple[int, ...] = ()


class Drop(Decision, frozen=True):
    """Free a resident version that nothing uses."""

    instance: int
    version: int


class Lend(Decision, frozen=True):
    """Stop generating and let these devices train; requests that stay wait with their KV."""

    instance: int


class Return(Decision, frozen=True):
    """Training is over: the devices return to this instance, which generates again."""

    instance: int


class Restart(Decision, frozen=True):
    """An instance stopped answering: end it and start it anew."""

    instance: int
    reason: str


# --- groups, batches, versions ------------------------------------------------------------------


class Admit(Decision, frozen=True):
    """A group starts, pinned to a version."""

    group: int
    version: int
    epoch: int
    row: int


class Hand(Decision, frozen=True):
    """Streaming: this finished group belongs to the open batch; training on it may begin."""

    batch: int
    group: int


class Take(Decision, frozen=True):
    """Train version `batch` on exactly these groups, giving version `batch + 1`."""

    batch: int
    groups: tuple[int, ...]
    staleness: tuple[int, ...]
    """Staleness of each group, in the order of `groups`."""


class Close(Decision, frozen=True):
    """Trajectories ended in a counted outcome instead of a batch."""

    group: int
    members: tuple[int, ...]
    outcome: str


class Retire(Decision, frozen=True):
    """Nothing uses this version any more: its weights may go."""

    version: int


class Wait(Decision, frozen=True):
    """The idle trainer waits, and for what: `starved`, `window` or `prompts`."""

    reason: str


class Finish(Decision, frozen=True):
    """All train steps are done."""


AnyDecision = (
    Start
    | Resume
    | Move
    | Park
    | Evict
    | Abort
    | Interrupt
    | Load
    | Drop
    | Lend
    | Return
    | Restart
    | Admit
    | Hand
    | Take
    | Close
    | Retire
    | Wait
    | Finish
)
