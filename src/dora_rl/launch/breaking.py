"""The one place where a worker's failure becomes a message: its owner decides what follows."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dora_rl.core.errors import DoraError, is_disk_full
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Broken


@contextmanager
def telling_why(channel: Channel) -> Iterator[None]:
    """Run the block; if it fails, send the owner the reason where there is one, and end the process."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DoraError | OSError) or _is_of_tensor_files(error):
            channel.send(broken(error))
        # The log may be on the disk that is full.
        with suppress(OSError):
            traceback.print_exc()
        # Python's own way to end would wait for collectives, and their warnings would be its last words.
        channel.leave(1)


def broken(error: BaseException) -> Broken:
    """The Broken message that tells the owner of a failure."""
    message, hint = (error.message, error.hint) if isinstance(error, DoraError) else (str(error), None)
    if _is_disk_full(error):
        told = f"no space is left on a disk: {message}"
        return Broken(message=told, is_disk_full=True, hint="free some space")
    is_lasting = isinstance(error, DoraError) and error.is_lasting
    return Broken(message=message, is_lasting=is_lasting, hint=hint)


def _is_disk_full(error: BaseException) -> bool:
    """Whether an error means a full disk; writers of tensors have the system's error in their text only."""
    cause = error.__cause__ if isinstance(error, DoraError) else error
    return is_disk_full(error) or (_is_of_tensor_files(cause) and "(os error 28)" in str(cause))


def _is_of_tensor_files(error: BaseException | None) -> bool:
    # Only where the library was loaded can it have raised: no worker loads it to ask.
    library = sys.modules.get("safetensors")
    return library is not None and isinstance(error, library.SafetensorError)
