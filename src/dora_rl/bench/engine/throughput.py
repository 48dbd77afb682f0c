"""Tokens a second by workload, against vLLM and the roofline."""

from dora_rl.bench.engine.device_speed import DeviceSpeed, least_time_s, measure_hardware
from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.reference import references
from dora_rl.bench.engine.workloads import RequestWorkload, TimedRuns, requests_of, timed
from dora_rl.bench.figures import Cell, Figures, Say

_COLUMNS = ("requests x tokens", "tokens/s", "median", "vLLM", "ratio", "floor", "of roofline", "seconds")


def table(setup: EngineBench, say: Say) -> Figures:
    """Measure tokens a second of each workload, all on one engine."""
    hardware = measure_hardware(setup.device, setup.torch_dtype)
    say(f"table: the device does {hardware}")
    engine = setup.engine(setup.workloads)
    say(f"table: memory\n{engine.ledger}")
    rows = []
    for workload in setup.workloads:
        requests = requests_of(workload, vocab_size=setup.model.vocab_size)
        result = timed(engine, requests, setup.repeats)
        rows.append(_row(setup, workload, result, hardware))
        say(f"table: {workload.name} {result.best_tokens_s:,.0f} tokens/s")
    return Figures(
        title=f"tokens generated a second, {setup.shape}, {setup.dtype}, {setup.device}",
        columns=_COLUMNS,
        rows=tuple(rows),
        note=f"best of {setup.repeats}, prompts of {setup.workloads[0].prompt_tokens} tokens, temperature 1, "
        f"logprobs; prefill and host included; the device does {hardware}",
    )


def _row(
    setup: EngineBench, workload: RequestWorkload, result: TimedRuns, hardware: DeviceSpeed
) -> tuple[Cell, ...]:
    least_s = least_time_s(setup.model, workload, hardware, itemsize=setup.torch_dtype.itemsize)
    return (
        workload.name,
        round(result.best_tokens_s, 1),
        round(result.median_tokens_s, 1),
        *_against_vllm(setup, workload, result),
        f"{100 * least_s / min(result.times_s):.1f} %",
        round(min(result.times_s), 2),
    )


def _against_vllm(
    setup: EngineBench, workload: RequestWorkload, result: TimedRuns
) -> tuple[Cell, Cell, Cell]:
    """vLLM's tokens a second on a workload, our share of it, and whether that is enough."""
    vllm = references().gpu
    reference = vllm.speeds.get(workload.name)
    if setup.device != "cuda" or setup.shape != vllm.shape or reference is None:
        return None, None, None
    ratio = result.best_tokens_s / reference.tokens_s
    verdict = "met" if ratio >= reference.floor_ratio else "missed"
    return reference.tokens_s, round(ratio, 2), f"{verdict} ({reference.floor_ratio:g}x)"
