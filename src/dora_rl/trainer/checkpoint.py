"""A trainer on disk: everything the next step depends on, in safetensors and JSON, written all or not at all.

    checkpoint.json         version, counts, and size and SHA-256 of every file; sealed by a digest of itself
    masters.safetensors     float32 weights
    moments.safetensors     both moments of AdamW
    random.safetensors      states of torch's generators
    kept.safetensors        older versions' weights, where the trainer keeps any

Written into a directory of another name, flushed, and renamed: what has the right name is complete. What was
cut short or changed afterwards is found out when it is opened, and named. Nothing in it can run code.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dora_rl.core.errors import DoraError
from dora_rl.core.record import Record
from dora_rl.model.tensor_files import save_tensors
from dora_rl.trainer.host_memory import HostMemory
from dora_rl.trainer.optimizer import MOMENTS

if TYPE_CHECKING:  # The trainer takes its checkpoints with these functions.
    from dora_rl.trainer.trainer import Trainer

FORMAT = 2
HEADER = "checkpoint.json"
MASTERS, MOMENTS_FILE, RANDOM = "masters.safetensors", "moments.safetensors", "random.safetensors"
KEPT = "kept.safetensors"


class CheckpointError(DoraError):
    """A checkpoint cannot be written where it is wanted, or is not what was written."""


class Sealed(Record, frozen=True):
    """Size and digest of one file of a checkpoint."""

    num_bytes: int
    sha256: str


class CheckpointHeader(Record, frozen=True):
    """Everything in a checkpoint that is not a tensor."""

    format: int
    version: int
    num_updates: int
    num_skipped: int
    gap_level: float | None
    steps: dict[str, int]
    """How often each master has been updated, by name."""
    files: dict[str, Sealed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole contents of a checkpoint, in host memory."""

    header: CheckpointHeader
    """The header, without files: they are sealed when they are written."""
    files: Mapping[str, Mapping[str, Tensor]]


def save_checkpoint(trainer: "Trainer", directory: Path) -> None:
    """Write the trainer between two steps. Every rank calls it, rank 0 writes."""
    snapshot = take_snapshot(trainer, HostMemory())
    if snapshot is not None:
        write_snapshot(snapshot, directory)


def take_snapshot(trainer: "Trainer", memory: HostMemory) -> Snapshot | None:
    """Take everything a checkpoint holds. Every rank calls it, rank 0 gets it.

    Where `is_apart` it is a copy, which later steps do not change; else it is to be written before them.
    """
    trainer.check_idle()
    is_first = trainer.is_first
    files = {
        name: memory.copied((each for each in tensors if is_first), f"{name}/")
        for name, tensors in (
            (MASTERS, trainer.weights.whole(trainer.weights.masters)),
            (MOMENTS_FILE, _whole_moments(trainer)),
            (KEPT, _kept(trainer)),
        )
    }
    if not is_first:
        return None
    header = CheckpointHeader(
        format=FORMAT,
        version=trainer.version,
        num_updates=trainer.optimizer.num_updates,
        num_skipped=trainer.optimizer.num_skipped,
        gap_level=trainer.watch.level,
        steps=trainer.optimizer.steps(),
        files={},
    )
    return Snapshot(header=header, files=files | {RANDOM: _random_states()})


def prepare_snapshots(trainer: "Trainer", memory: HostMemory) -> None:
    """Touch the memory of snapshots before the first of them is taken."""
    for name, shape in trainer.weights.shapes.items():
        memory.prepare(f"{MASTERS}/{name}", shape, torch.float32)
        for moment in MOMENTS:
            memory.prepare(f"{MOMENTS_FILE}/{moment}.{name}", shape, torch.float32)


def is_apart(trainer: "Trainer") -> bool:
    """Whether a snapshot lies in other host memory than what training changes."""
    return trainer.weights.is_sharded or is_on_device(trainer)


def is_on_device(trainer: "Trainer") -> bool:
    """Whether a checkpoint has to be copied into host memory."""
    return any(master.device.type != "cpu" for master in trainer.weights.masters.values())


def write_snapshot(snapshot: Snapshot, directory: Path) -> None:
    """Write a snapshot to a directory: all of it, or nothing."""
    _write_whole(directory, lambda partial: _write(snapshot, partial))


def load_checkpoint(trainer: "Trainer", directory: Path) -> None:
    """Make a trainer of the same model and configuration go on exactly as the saved one would have."""
    trainer.check_idle()
    header = read_header(directory)
    masters = _read(directory, MASTERS, header)
    _check_fits(directory, masters, trainer.weights.shapes)
    moments = _read(directory, MOMENTS_FILE, header)
    random = _read(directory, RANDOM, header)
    kept = _read(directory, KEPT, header)
    for name, master in trainer.weights.masters.items():
        trainer.weights.restore(name, masters[name], master)
    trainer.weights.refresh()
    trainer.optimizer.restore(header.steps, {moment: _under(moment, moments) for moment in MOMENTS})
    trainer.optimizer.num_updates, trainer.optimizer.num_skipped = header.num_updates, header.num_skipped
    trainer.watch.level = header.gap_level
    if trainer.kept is not None:
        trainer.kept.replace(_by_version(kept))
    trainer.become(header.version)
    _restore_random(random)


def read_header(directory: Path) -> CheckpointHeader:
    """What a checkpoint says of itself, its seal checked."""
    path = directory / HEADER
    try:
        sealed = json.loads(path.read_text(encoding="utf-8"))
        content, seal = sealed["content"], sealed["seal"]
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no {HEADER}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", hint=_AN_OLDER_ONE) from error
    if _seal(content) != seal:
        raise CheckpointError(f"{path} was changed after it was written", hint=_AN_OLDER_ONE)
    if content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is of format {content.get('format')}, not {FORMAT}")
    return msgspec.convert(content, CheckpointHeader)


_AN_OLDER_ONE = "go back to an older checkpoint"


def _write(snapshot: Snapshot, directory: Path) -> None:
    for name, tensors in snapshot.files.items():
        save_tensors({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / name)
    sealed = {name: _sealed(directory / name) for name in snapshot.files}
    header = msgspec.structs.replace(snapshot.header, files=sealed)
    content = msgspec.to_builtins(header)
    text = json.dumps({"content": content, "seal": _seal(content)}, indent=2) + "\n"
    (directory / HEADER).write_text(text, encoding="utf-8")


def _write_whole(directory: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a directory, and give it its name only when all of it is on disk."""
    if directory.exists():
        raise CheckpointError(f"{directory} exists already", hint="choose another name")
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    for path in (*partial.iterdir(), partial):
        _flush(path)
    partial.rename(directory)
    _flush(directory.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(directory: Path, name: str, header: CheckpointHeader) -> dict[str, Tensor]:
    path, expected = directory / name, header.files.get(name)
    if expected is None or not path.exists():
        raise CheckpointError(f"{path} is missing", hint=_AN_OLDER_ONE)
    try:
        if path.stat().st_size != expected.num_bytes:
            raise CheckpointError(
                f"{path} has {path.stat().st_size} bytes, not {expected.num_bytes}", hint=_AN_OLDER_ONE
            )
        if _sealed(path) != expected:
            raise CheckpointError(f"{path} was changed after it was written", hint=_AN_OLDER_ONE)
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", hint=_AN_OLDER_ONE) from error


def _check_fits(directory: Path, stored: Mapping[str, Tensor], own: Mapping[str, torch.Size]) -> None:
    another = f"{directory} belongs to another model or configuration"
    different = sorted(stored.keys() ^ own.keys())
    if different:
        raise CheckpointError(f"{another}: '{different[0]}' is in only one of them")
    for name, shape in own.items():
        if stored[name].shape != shape:
            raise CheckpointError(f"{another}: '{name}' is {list(stored[name].shape)}, not {list(shape)}")


def _under(moment: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{moment}."
    return {name.removeprefix(prefix): own for name, own in tensors.items() if name.startswith(prefix)}


def _whole_moments(trainer: "Trainer") -> Iterator[tuple[str, Tensor]]:
    for moment, tensors in trainer.optimizer.moments().items():
        for name, tensor in trainer.weights.whole(tensors):
            yield f"{moment}.{name}", tensor


def _kept(trainer: "Trainer") -> Iterator[tuple[str, Tensor]]:
    """Weights of kept versions by version and name; the current version is in the masters."""
    versions = {} if trainer.kept is None else trainer.kept.tensors()
    for version, tensors in versions.items():
        if version != trainer.version:
            for name, tensor in tensors.items():
                yield f"{version}/{name}", tensor.cpu()


def _by_version(kept: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    versions: dict[int, dict[str, Tensor]] = {}
    for key, tensor in kept.items():
        version, name = key.split("/", 1)
        versions.setdefault(int(version), {})[name] = tensor
    return versions


def _sealed(path: Path) -> Sealed:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Sealed(num_bytes=path.stat().st_size, sha256=digest)


def _seal(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _restore_random(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
