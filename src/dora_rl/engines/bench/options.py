"""From the options of the command line to a setup: what is left out follows from the device."""

from collections.abc import Sequence
from pathlib import Path

from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record
from dora_rl.engines.bench.setup import BenchSetup, DeviceKind
from dora_rl.engines.bench.workloads import PROMPT_TOKENS, long_tail, parse_workload, read_lengths
from dora_rl.model.config import Dtype
from dora_rl.model.shapes import SHAPES


class Defaults(Record, frozen=True):
    """What is measured on a kind of device unless it is said otherwise."""

    shape: str
    dtype: Dtype
    rows: tuple[str, ...]
    sections: tuple[str, ...]
    prompt_tokens: int
    steps_ahead: int
    step_tokens: int


DEFAULTS: dict[DeviceKind, Defaults] = {
    "cuda": Defaults(
        shape="qwen3-0.6b",
        dtype="bfloat16",
        rows=("1x256", "8x256", "64x256", "256x256", "1024x256", "1024xtail", "256xtail"),
        sections=("table", "invariant", "versions", "weights", "migrate", "host"),
        prompt_tokens=PROMPT_TOKENS,
        steps_ahead=1,
        step_tokens=8192,
    ),
    "cpu": Defaults(
        shape="smollm2-135m",
        dtype="float32",
        rows=("1x32", "8x32", "32x32"),
        sections=("table", "invariant", "versions", "weights", "migrate", "host"),
        prompt_tokens=32,
        steps_ahead=0,
        step_tokens=512,
    ),
}


def make_setup(
    *,
    device: DeviceKind,
    shape: str | None = None,
    rows: Sequence[str] = (),
    lengths: Path | None = None,
    repeats: int = 2,
    steps_ahead: int | None = None,
    step_tokens: int | None = None,
    directory: Path | None = None,
) -> BenchSetup:
    """The setup these options ask for."""
    defaults = DEFAULTS[device]
    if shape is not None and shape not in SHAPES:
        raise ConfigError(f"no shape '{shape}'", hint=f"there are {', '.join(SHAPES)}")
    tail = long_tail() if lengths is None else read_lengths(lengths)
    workloads = (parse_workload(row, tail, defaults.prompt_tokens) for row in rows or defaults.rows)
    return BenchSetup(
        device=device,
        shape=shape or defaults.shape,
        dtype=defaults.dtype,
        workloads=tuple(workloads),
        repeats=repeats,
        steps_ahead=defaults.steps_ahead if steps_ahead is None else steps_ahead,
        step_tokens=step_tokens or defaults.step_tokens,
        directory=directory,
    )
