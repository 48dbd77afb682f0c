"""What features of the engine cost: batch-invariant mode, resident versions, the arrival of a new version."""

from collections.abc import Callable

import torch
from msgspec.structs import replace

from dora_rl.bench.device import synchronised_s
from dora_rl.bench.engine.device_speed import measure_hardware
from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.roofline import least_time_s
from dora_rl.bench.engine.workloads import RequestWorkload, requests_of, timed
from dora_rl.bench.figures import Figures, Say
from dora_rl.model.delta import Delta, ParameterChange

_INVARIANT_ROWS = {"cuda": (64, 256), "cpu": (8, 32)}


def invariant(setup: EngineBench, say: Say) -> Figures:
    """Measure tokens a second of the same requests in fast and in batch-invariant mode."""
    count, length = _INVARIANT_ROWS[setup.device]
    prompt_tokens = setup.workloads[0].prompt_tokens
    workload = RequestWorkload(
        name=f"{count}x{length}", lengths=(length,) * count, prompt_tokens=prompt_tokens
    )
    requests = requests_of(workload, vocab_size=setup.model.vocab_size)
    speeds = {}
    for is_invariant in (False, True):
        engine = setup.engine([workload], is_batch_invariant=is_invariant)
        speeds[is_invariant] = timed(engine, requests, setup.repeats).best_tokens_s
        say(f"invariant: {'on' if is_invariant else 'off'} {speeds[is_invariant]:,.0f} tokens/s")
        del engine
    return Figures(
        title=f"batch-invariant mode, {workload.name}",
        columns=("mode", "tokens/s", "share"),
        rows=tuple(
            ("invariant" if mode else "fast", round(speed, 1), f"{100 * speed / speeds[False]:.0f} %")
            for mode, speed in speeds.items()
        ),
    )


SHARES = (70, 20, 8, 2)
"""Shares of the requests by version in per cent, newest version first."""
_VERSIONS_ROWS = {"cuda": (256, 256), "cpu": (32, 32)}


def versions(setup: EngineBench, say: Say) -> Figures:
    """Measure tokens a second with one to four versions that have requests; all four are resident."""
    count, length = _VERSIONS_ROWS[setup.device]
    prompt_tokens = setup.workloads[0].prompt_tokens
    workload = RequestWorkload(
        name=f"{count}x{length}", lengths=(length,) * count, prompt_tokens=prompt_tokens
    )
    hardware, itemsize = measure_hardware(setup.device, setup.torch_dtype), setup.torch_dtype.itemsize
    engine = setup.engine([workload], num_versions=len(SHARES))
    rows, alone = [], 0.0
    for num_versions in range(1, len(SHARES) + 1):
        dealt = _dealt(count, num_versions)
        requests = requests_of(workload, vocab_size=setup.model.vocab_size, versions=dealt)
        speed = timed(engine, requests, setup.repeats).best_tokens_s
        alone = alone or speed
        counts = [dealt.count(version) for version in range(num_versions)]
        # Each version reads its own weights: passes of several cost what each alone would.
        least_s = sum(
            least_time_s(setup.model, replace(workload, lengths=(length,) * own), hardware, itemsize=itemsize)
            for own in counts
        )
        rows.append(
            (
                num_versions,
                " ".join(map(str, counts)),
                round(speed, 1),
                f"{100 * speed / alone:.0f} %",
                f"{100 * least_s * speed / workload.num_tokens:.0f} %",
            )
        )
        say(f"versions: {num_versions} with requests, {speed:,.0f} tokens/s")
    return Figures(
        title=f"versions at once, {workload.name}",
        columns=("versions", "requests of each", "tokens/s", "of one", "of the sum of rooflines"),
        rows=tuple(rows),
    )


def _dealt(count: int, num_versions: int) -> tuple[int, ...]:
    """The version of each request: the newest has what the others do not take."""
    older = [max(1, round(count * share / 100)) for share in SHARES[1:num_versions]]
    counts = [count - sum(older), *older]
    return tuple(version for version, number in enumerate(counts) for _ in range(number))


CHANGED_SHARE = 0.02


def weights(setup: EngineBench, say: Say) -> Figures:
    """Measure the seconds until a version can serve, as a delta and as full weights in host memory."""
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
        changes[name] = ParameterChange(indices_N=indices_N, values_N=parameter.flatten()[indices_N] + 1)
    return changes


def _time_s(work: Callable[[], None], device: str) -> float:
    begin_s = synchronised_s(device)
    work()
    return synchronised_s(device) - begin_s
