"""From the command line to a scope: which schedules, which seeds, which recipe."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, cast

from dora_rl.bench.schedules.schedule_comparison import SCHEDULES, ScheduleScope
from dora_rl.bench.schedules.workload import PrescribedWorkload, write_workload
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Lognormal, ScheduleName
from dora_rl.core.record import Record

_SIGMA = 1.0
_MEDIAN_TOKENS = {"cpu": 32.0, "cuda": 300.0}
"""Median tokens of a response by device; on a GPU those of the tail that engines are compared on."""


_SIZES = {"demo": ("batch.groups=8",)}
"""Assignments that make a shipped recipe's batch smaller, to as many groups as on a GPU.

Beside fewer others the long ones stand out, as they do where answers are long.
"""


class ScheduleOptions(Record, frozen=True):
    """The options of `dora bench schedules` as they were given."""

    device: Literal["cpu", "cuda"]
    steps: int
    schedules: str
    seeds: str
    recipe: str
    assignments: tuple[str, ...]
    is_prescribed: bool | None
    shape: str | None
    groups: int | None
    max_tokens: int | None
    engine: str = "native"


def make_scope(options: ScheduleOptions, place: Path, keep: Path | None) -> ScheduleScope:
    """The scope that the options describe; a workload of prescribed lengths is written to `place`."""
    is_cuda = options.device == "cuda"
    recipe, lengths = options.recipe, None
    if options.is_prescribed or (options.is_prescribed is None and is_cuda):
        work = _workload(options)
        # Writing a model imports torch, which whoever orchestrates the runs does without.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            recipe, lengths = str(apart.submit(write_workload, work, place).result()), work.lengths
    return ScheduleScope(
        recipe=recipe,
        assignments=(
            f"devices.kind={options.device}",
            f"engine.kind={options.engine}",
            *_SIZES.get(recipe, ()),
            *options.assignments,
        ),
        steps=options.steps,
        schedules=_schedules(options.schedules),
        seeds=tuple(_seed(text) for text in _listed(options.seeds)),
        directory=str((keep or place / "runs").absolute()),
        keeps_runs=keep is not None,
        lengths=lengths,
    )


def _workload(options: ScheduleOptions) -> PrescribedWorkload:
    """The workload of prescribed lengths; on a CPU small enough for a minute or two."""
    is_cuda = options.device == "cuda"
    longest = options.max_tokens or (4096 if is_cuda else 192)
    median_tokens = min(_MEDIAN_TOKENS[options.device], longest / 2)
    groups, group_size = options.groups or (8 if is_cuda else 4), 8 if is_cuda else 4
    return PrescribedWorkload(
        shape=options.shape or ("qwen3-0.6b" if is_cuda else "tiny"),
        device=options.device,
        groups=groups,
        group_size=group_size,
        slots=4 * groups * group_size if is_cuda else 16,
        lengths=Lognormal(
            median_tokens=median_tokens, sigma=_SIGMA, min_tokens=min(16, longest), max_tokens=longest
        ),
    )


def _schedules(text: str) -> tuple[ScheduleName, ...]:
    for name in _listed(text):
        if name not in SCHEDULES:
            raise ConfigError(f"no schedule named '{name}'", hint=f"known: {', '.join(SCHEDULES)}")
    return cast(tuple[ScheduleName, ...], _listed(text)) or SCHEDULES


def _seed(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"'{text}' is no seed", hint="give numbers with commas: --seeds 0,1,2")
    return int(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
