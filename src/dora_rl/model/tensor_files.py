"""Tensors into a safetensors file that whoever may read the directory may read.

The library writes files for their owner alone, whatever the user's umask says.
"""

from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file, with the mode of any new file there."""
    path.touch()
    mode = S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path, metadata=metadata)
    path.chmod(mode)
