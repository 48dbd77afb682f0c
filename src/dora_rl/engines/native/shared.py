"""A live request handed to another process through shared memory.

The bytes are a safetensors file, like those of `Exported.to_bytes`, in a memory file system and open to its
owner only. The sender copies the KV into it once; the receiver maps it, and its cache copies from there.
Nothing is unpickled. Whoever takes a request removes the file's name, so its memory is free as soon as the KV
is in a cache; one that nobody takes is removed by `discard_shared`.
"""

import mmap
import os
import secrets
import stat
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.transfer import HEADER_KEY, Exported, Header

SHARED_MEMORY = Path("/dev/shm")
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tensor lies behind the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a safetensors file that holds a request."""

    metadata: dict[str, str] = msgspec.field(name="__metadata__")
    kv: _Entry | None = None


def share(exported: Exported, directory: Path = SHARED_MEMORY) -> Path:
    """Write a request to a new file of its own and return its name."""
    index = msgspec.json.encode(_index_of(exported))
    index += b" " * (-(_LENGTH_BYTES + len(index)) % _ALIGNMENT)
    kv_bytes = 0 if exported.kv is None else exported.kv.nbytes
    path = directory / f"dora_rl.{os.getpid()}.{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Set aside at once: a full file system is an error here, and not a fault when memory is touched.
        os.posix_fallocate(descriptor, 0, _LENGTH_BYTES + len(index) + kv_bytes)
        memory = mmap.mmap(descriptor, 0)
    except OSError as error:
        path.unlink()
        raise RequestError(f"no shared memory for a request of {kv_bytes:,} bytes of KV: {error}") from error
    finally:
        os.close(descriptor)
    memory[: _LENGTH_BYTES + len(index)] = len(index).to_bytes(_LENGTH_BYTES, "little") + index
    if exported.kv is not None:
        target = torch.frombuffer(memory, dtype=exported.kv.dtype, offset=_LENGTH_BYTES + len(index))
        target.view(exported.kv.shape).copy_(exported.kv)
    return path


def take_shared(path: Path) -> Exported:
    """The request another process shared; its file has no name any more."""
    memory = _mapped(path)
    try:
        data_start = _LENGTH_BYTES + int.from_bytes(memory[:_LENGTH_BYTES], "little")
        index = msgspec.json.decode(memory[_LENGTH_BYTES:data_start], type=_Index)
        header = msgspec.json.decode(index.metadata[HEADER_KEY], type=Header)
        kv = None if index.kv is None else _tensor(memory, data_start, index.kv)
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise RequestError(f"{path} holds no exported request: {error}") from error
    discard_shared(path)
    return Exported(header=header, kv=kv)


def discard_shared(path: Path) -> None:
    """Remove a shared request's name."""
    path.unlink(missing_ok=True)


def _index_of(exported: Exported) -> _Index:
    kv, metadata = exported.kv, {HEADER_KEY: msgspec.json.encode(exported.header).decode()}
    if kv is None:
        return _Index(metadata=metadata)
    entry = _Entry(dtype=_NAMES[kv.dtype], shape=tuple(kv.shape), data_offsets=(0, kv.nbytes))
    return _Index(metadata=metadata, kv=entry)


def _mapped(path: Path) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise RequestError(f"there is no shared request: {error}") from error
    try:
        status = os.fstat(descriptor)
        is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        if not stat.S_ISREG(status.st_mode) or not is_private or status.st_size < _LENGTH_BYTES:
            raise RequestError(f"{path} is no private file of this user, or too short")
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _tensor(memory: mmap.mmap, data_start: int, entry: _Entry) -> Tensor:
    """The KV where it lies: the tensor keeps the memory mapped."""
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= len(memory) - data_start:
        raise ValueError(f"KV at {begin}..{end} of {len(memory) - data_start} bytes")
    dtype = _DTYPES[entry.dtype]
    flat = torch.frombuffer(
        memory, dtype=dtype, offset=data_start + begin, count=(end - begin) // dtype.itemsize
    )
    if flat.numel() != torch.Size(entry.shape).numel():
        raise ValueError(f"KV of {flat.numel()} values for a shape of {list(entry.shape)}")
    return flat.view(entry.shape)
