"""What can go wrong when a run is written down.

DoraError
├── DiskFull             no room; what was to be written is not there, all earlier writes are
├── JournalError         the journal cannot be read or written
│   ├── Contradiction    a record is at odds with what the journal holds; nothing of it was written
│   └── JournalDamaged   the journal's file is gone or not as it was written; trying again is no way out
└── UserError
    └── RunError         a run directory is taken, finished, missing, or not one
"""

from dora_rl.core.errors import DoraError, UserError


class DiskFull(DoraError):
    """The disk has no room for a write, which may be tried again when there is room."""


class JournalError(DoraError):
    """The journal cannot be opened, read or written."""


class Contradiction(JournalError):
    """A record cannot be true if the journal is: a bug in whoever writes it. Nothing of it was written."""


class JournalDamaged(JournalError):
    """The journal's file is gone, or not as it was written: a run cannot go on with it."""

    is_lasting = True


class RunError(UserError):
    """A run directory is missing, taken, finished or not one, and cannot be used as asked."""
