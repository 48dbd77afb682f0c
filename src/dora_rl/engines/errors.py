"""What an engine can refuse.

DoraError
└── EngineError          a command cannot be carried out; the engine goes on
    ├── RequestError     this request cannot be served here
    ├── VersionError     this version cannot be loaded, adopted or dropped now
    └── OutOfMemory      a reservation does not fit
"""

from dora_rl.core.errors import DoraError


class EngineError(DoraError):
    """A command to an engine that cannot be carried out."""


class RequestError(EngineError):
    """A request that this engine cannot serve."""


class VersionError(EngineError):
    """A version that is unknown, in use, or cannot be loaded."""


class OutOfMemory(EngineError):
    """A reservation beyond what the ledger allows."""
