"""What any worker may be told or say. On a wire is nothing but frozen records in msgpack, tagged by name."""

from dora_rl.core.record import Record

KEY_VARIABLE = "DORA_LAUNCH_KEY"
"""The environment variable by which a worker that dials its owner is given its key."""

LIFELINE_VARIABLE = "DORA_LAUNCH_LIFELINE"
"""The environment variable with the descriptor whose end is the end of a worker that dials its owner."""

SEARCH_PATH_VARIABLE = "DORA_SEARCH_PATH"
"""The environment variable by which a worker is told where its owner finds modules."""


class Message(Record, frozen=True, tag=True):
    """Something that crosses the socket between a worker and its owner."""


class Stop(Message, frozen=True):
    """Told to a worker: end in order."""


class Alive(Message, frozen=True):
    """Said by a worker: a sign of life while something takes long."""


class Broken(Message, frozen=True):
    """Said by a worker before it ends: it cannot go on, and why."""

    message: str
    is_lasting: bool = False
    """Whether another try would end in the same way: the input is wrong, or a file is damaged."""
    is_disk_full: bool = False
    """Whether the disk is full, so that another try would fail until there is room."""
    hint: str | None = None


class Hello(Message, frozen=True):
    """Said first by a worker that dials its owner, who hangs up on a wrong key. Not part of `replies`."""

    key: str
