"""How long a new version takes to arrive: as a delta in place, and as a full set of weights."""

import time
from collections.abc import Callable

import torch

from dora_rl.engines.bench.figures import Figures, Say
from dora_rl.engines.bench.hardware import synchronise
from dora_rl.engines.bench.setup import BenchSetup
from dora_rl.model.delta import Change, Delta

CHANGED_SHARE = 0.02


def weights(setup: BenchSetup, say: Say) -> Figures:
    """Both from host memory; until the version can serve."""
    engine = setup.engine(setup.workloads[:1], num_versions=1)
    parameters = {name: each.cpu() for name, each in engine.decoder(0).state_dict().items()}
    delta = _delta(parameters)
    changed_bytes = sum(each.indices_N.nbytes + each.values_N.nbytes for each in delta.values())
    full_bytes = sum(each.nbytes for each in parameters.values())

    def reload() -> None:
        engine.drop_version(repeats)
        engine.load_version(repeats + 1, parameters)

    repeats = setup.repeats
    adopt_s = min(
        _time_s(lambda step=step: engine.adopt_version(step + 1, step, delta), setup.device)  # type: ignore[misc]
        for step in range(repeats)
    )
    load_s = _time_s(reload, setup.device)
    say(f"weights: delta {adopt_s:.3f} s, full {load_s:.3f} s")
    return Figures(
        title="a new version, from host memory until it can serve",
        columns=("how", "MiB", "seconds"),
        rows=(
            (
                f"delta of {100 * CHANGED_SHARE:g} %, in place",
                round(changed_bytes / 2**20, 1),
                round(adopt_s, 4),
            ),
            ("all weights", round(full_bytes / 2**20, 1), round(load_s, 4)),
        ),
    )


def _delta(parameters: dict[str, torch.Tensor]) -> Delta:
    generator = torch.Generator().manual_seed(0)
    changes = {}
    for name, parameter in parameters.items():
        count = max(1, int(CHANGED_SHARE * parameter.numel()))
        indices_N = torch.randint(parameter.numel(), (count,), generator=generator).unique()
        changes[name] = Change(indices_N=indices_N, values_N=parameter.flatten()[indices_N] + 1)
    return changes


def _time_s(work: Callable[[], None], device: str) -> float:
    synchronise(device)
    begin = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - begin
