"""Everything the control plane can decide. Executors carry these out, live or simulated.

Owns the records of decisions alone. A decision says what to do and to what, never how.
"""

from dora_rl.core.record import Record


class Decision(Record, frozen=True, tag=True, tag_field="decision"):
    """One thing that the executor, live or simulated, must do now."""


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
    """Number of tokens that exist already, from before a crash or an interruption: prefill them too."""
    evaluation: bool = False
    question: int | None = None
    """The number of a role's turn, of which this is the generation; None for whatever the policy says."""

    @property
    def is_aside(self) -> bool:
        """Whether it is an evaluation or a role's turn: on no group, and in no law."""
        return self.evaluation or self.question is not None


class Resume(Decision, frozen=True):
    """Append the environment's reply to the KV kept on this instance, and go on generating."""

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
    """Take a request's KV to host memory.

    One that decodes goes on by itself when there is room again, one between turns when it is resumed.
    """

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


# --- environments -------------------------------------------------------------------------------


class Open(Decision, frozen=True, omit_defaults=True):
    """Reset the environments of all members of a queued prompt, which has no version yet."""

    epoch: int
    row: int
    is_evaluation: bool = False


class Reopen(Decision, frozen=True):
    """Begin the next attempt of a trajectory in a new environment, under the version of its group."""

    trajectory: int
    attempt: int


class Cut(Decision, frozen=True):
    """End the episode of a trajectory whose environment has the turn; it counts as truncated."""

    trajectory: int
    reason: str


# --- instances ----------------------------------------------------------------------------------


class Load(Decision, frozen=True):
    """Make `version` resident on an instance, dropping `drop` first, once moved requests have left."""

    instance: int
    version: int
    drop: tuple[int, ...] = ()


class Drop(Decision, frozen=True):
    """Free a version on an instance that nothing there uses."""

    instance: int
    version: int


class Lend(Decision, frozen=True):
    """Stop generating on an instance and let its devices train; requests that stay wait with their KV."""

    instance: int


class Return(Decision, frozen=True):
    """Give an instance its devices back from the trainer: it generates again."""

    instance: int


class Restart(Decision, frozen=True):
    """End an instance that stopped answering, and start it anew."""

    instance: int
    reason: str


# --- groups, batches, versions ------------------------------------------------------------------


class Admit(Decision, frozen=True):
    """Record that a group starts, pinned to a version."""

    group: int
    version: int
    epoch: int
    row: int


class Hand(Decision, frozen=True):
    """Streaming: give a finished group to the trainer as part of the open batch."""

    batch: int
    group: int


class Take(Decision, frozen=True):
    """Train version `batch` on exactly these groups, giving version `batch + 1`."""

    batch: int
    groups: tuple[int, ...]
    staleness: tuple[int, ...]
    """Staleness of each group in versions, in the order of `groups`."""


class Close(Decision, frozen=True):
    """Record that trajectories ended in a counted outcome instead of a batch."""

    group: int
    members: tuple[int, ...]
    outcome: str


class Retire(Decision, frozen=True):
    """Record that nothing uses a version any more: its weights may be deleted."""

    version: int


class Wait(Decision, frozen=True):
    """Record that the idle trainer waits, and for what: `starved`, `window` or `prompts`."""

    reason: str


class Skip(Decision, frozen=True):
    """Record that a version was replaced before it started a group, and what kept it from that at the end.

    `prompts`: none was queued; `steps`: the last steps need no more; `window`: the staleness bound;
    `schedule`: its own rule; `target`: R groups were active; `room`: no instance that serves it had room;
    `publish`: groups waited for the next version; `environments`: none of the queued prompts' was reset.
    """

    version: int
    reason: str


class Finish(Decision, frozen=True):
    """End the run: all train steps are published."""


AnyDecision = (
    Start
    | Resume
    | Move
    | Park
    | Evict
    | Abort
    | Interrupt
    | Open
    | Reopen
    | Cut
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
    | Skip
    | Finish
)
