"""The one place where a worker's failure becomes a message: its owner decides what follows."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from safetensors import SafetensorError

from dora_rl.core.errors import DoraError, UserError
from dora_rl.run.messages import Broken
from dora_rl.run.workers.channel import Channel
from dora_rl.store.durable import is_disk_full


@contextmanager
def telling_why(channel: Channel) -> Iterator[None]:
    """Do the block; if it fails in a way that has words, say them and end the process."""
    try:
        yield
    except (DoraError, OSError, SafetensorError) as error:
        channel.send(broken(error))
        _end(channel)
    except Exception:
        # Python's own way to end would wait for collectives, and their warnings would be its last words.
        _end(channel)


def _end(channel: Channel) -> None:
    # The log may be on the disk that is full.
    with suppress(OSError):
        traceback.print_exc()
    channel.leave(1)


def broken(error: DoraError | OSError | SafetensorError) -> Broken:
    """What the owner is told of a failure."""
    message, hint = (error.message, error.hint) if isinstance(error, DoraError) else (str(error), None)
    if _is_disk_full(error):
        told = f"no space is left on a disk: {message}"
        return Broken(message=told, is_disk_full=True, hint="free some space")
    return Broken(message=message, is_users=isinstance(error, UserError), hint=hint)


def _is_disk_full(error: BaseException) -> bool:
    """Whoever writes tensors has the system's error in its text only."""
    cause = error.__cause__ if isinstance(error, DoraError) else error
    return is_disk_full(error) or (isinstance(cause, SafetensorError) and "(os error 28)" in str(cause))
