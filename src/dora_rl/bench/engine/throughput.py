"""Tokens a second by workload, against vLLM and the roofline."""

from dataclasses import dataclass

from dora_rl.bench.engine.device_speed import DeviceSpeed, measure_hardware
from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.reference import floor_verdict, gpu_reference
from dora_rl.bench.engine.roofline import least_time_s
from dora_rl.bench.engine.vllm_beside import is_vllm_installed, measure_vllm
from dora_rl.bench.engine.workloads import RequestWorkload, TimedRuns, requests_of, timed
from dora_rl.bench.figures import Cell, Figures, Say

_COLUMNS = ("requests x tokens", "tokens/s", "median", "vLLM", "ratio", "floor", "of roofline", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSpeeds:
    """What we are compared with: vLLM's speeds by workload, and where they come from."""

    source: str
    tokens_s: dict[str, float]
    floor_ratios: dict[str, float]
    """Least ratio of ours to vLLM's that counts as reaching it, by workload."""


def table(setup: EngineBench, say: Say) -> Figures:
    """Measure tokens a second of each workload, all on one engine."""
    vllm = vllm_speeds(setup, say)
    hardware = measure_hardware(setup.device, setup.torch_dtype)
    say(f"table: the device does {hardware}")
    engine = setup.engine(setup.workloads)
    say(f"table: memory\n{engine.ledger}")
    rows = []
    for workload in setup.workloads:
        requests = requests_of(workload, vocab_size=setup.model.vocab_size)
        result = timed(engine, requests, setup.repeats, setup.least_s)
        rows.append(_row(setup, workload, result, hardware, vllm))
        say(f"table: {workload.name} {result.best_tokens_s:,.0f} tokens/s")
    return Figures(
        title=f"tokens generated a second, {setup.shape}, {setup.dtype}, {setup.device}",
        columns=_COLUMNS,
        rows=tuple(rows),
        note=f"best of {setup.repeats} or more, prompts of {setup.workloads[0].prompt_tokens} tokens, "
        f"temperature 1, logprobs; prefill and host included; the device does {hardware}; {vllm.source}",
    )


def _row(
    setup: EngineBench,
    workload: RequestWorkload,
    result: TimedRuns,
    hardware: DeviceSpeed,
    vllm: VllmSpeeds,
) -> tuple[Cell, ...]:
    least_s = least_time_s(setup.model, workload, hardware, itemsize=setup.torch_dtype.itemsize)
    return (
        workload.name,
        round(result.best_tokens_s, 1),
        round(result.median_tokens_s, 1),
        *_against(vllm, workload, result),
        f"{100 * least_s / min(result.times_s):.1f} %",
        round(min(result.times_s), 2),
    )


def _against(vllm: VllmSpeeds, workload: RequestWorkload, result: TimedRuns) -> tuple[Cell, Cell, Cell]:
    """vLLM's tokens a second on a workload, our share of it, and whether that is enough."""
    tokens_s = vllm.tokens_s.get(workload.name)
    if tokens_s is None:
        return None, None, None
    ratio = result.best_tokens_s / tokens_s
    return round(tokens_s, 1), round(ratio, 2), floor_verdict(ratio, vllm.floor_ratios.get(workload.name))


def vllm_speeds(setup: EngineBench, say: Say) -> VllmSpeeds:
    """vLLM's speeds on this device if it runs here, else those that were written down for the shape."""
    known = gpu_reference(setup.model) if setup.device == "cuda" else None
    speeds = {} if known is None else known.speeds
    floors = {name: each.floor_ratio for name, each in speeds.items() if each.floor_ratio is not None}
    if setup.is_vllm_beside and is_vllm_installed():
        answer = measure_vllm(setup, say)
        if answer is not None:
            tokens = {each.name: each.num_tokens for each in setup.workloads}
            best = {name: tokens[name] / min(times_s) for name, times_s in answer.times_s.items()}
            source = f"vLLM {answer.version} ran beside it, as often"
            return VllmSpeeds(source=source, tokens_s=best, floor_ratios=floors)
    if known is None:
        return VllmSpeeds(source="no figures of vLLM are known for it", tokens_s={}, floor_ratios={})
    return VllmSpeeds(
        source=f"{known.engine}: on {known.machine}, written down on {known.recorded_on}",
        tokens_s={name: each.tokens_s for name, each in speeds.items()},
        floor_ratios=floors,
    )
