"""What can go wrong when a run is written down.

DoraError
├── DiskFull             no room; what was to be written is not there, all earlier writes are
├── JournalError         the journal cannot be read or written
│   └── Contradiction    a record is at odds with what the journal holds; nothing of it was written
└── UserError
    └── RunError         a run directory is taken, finished, missing, or not one
"""

from dora_rl.core.errors import DoraError, UserError


class DiskFull(DoraError):
    """There is no room for a write. It may be tried again when there is."""


class JournalError(DoraError):
    """The journal cannot be opened, read or written."""


class Contradiction(JournalError):
    """What was to be recorded cannot be true if the journal is: a bug in whoever writes it."""


class RunError(UserError):
    """This run directory cannot be used in this way."""
