"""The scheduler's own time for a decoding row: plans made and committed, with nothing computed in between."""

import time

from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.workloads import RequestWorkload, requests_of
from dora_rl.bench.figures import Cell, Figures, Say
from dora_rl.engines.config import Limits
from dora_rl.engines.native.scheduling.scheduler import Scheduler
from dora_rl.engines.native.scheduling.step_plan import Plan, Sampled
from dora_rl.engines.native.scheduling.stops import Stops

_COUNTS = (1, 8, 64, 256, 1024)
_NUM_STEPS = 200
_VOCAB_SIZE = 1000


def host(setup: EngineBench, say: Say) -> Figures:
    """Measure the scheduler's time for each number of decoding requests."""
    rows = [_row(count, setup.repeats) for count in _COUNTS]
    say(f"host: {rows[-1][2]} us a row at {rows[-1][0]} rows")
    return Figures(
        title="the scheduler on the host, a decode step",
        columns=("rows", "us a step", "us a row", "of it plan", "of it commit"),
        rows=tuple(rows),
        note="no device; a plan ahead of the answers, as on a GPU",
    )


def _row(count: int, repeats: int) -> tuple[Cell, ...]:
    plan_s, commit_s = min((step_times_s(count) for _ in range(repeats)), key=sum)
    plan_us, commit_us = 1e6 * plan_s, 1e6 * commit_s
    step_us = plan_us + commit_us
    per_row = (round(each / count, 2) for each in (step_us, plan_us, commit_us))
    return count, round(step_us, 1), *per_row


def step_times_s(count: int, num_steps: int = _NUM_STEPS) -> tuple[float, float]:
    """Mean seconds of making and of committing the plan of a decode step, one plan ahead."""
    workload = RequestWorkload(name="host", lengths=(num_steps + 50,) * count, prompt_tokens=1)
    limits = Limits(
        num_blocks=count * (num_steps // 32 + 3),
        max_running=count,
        step_tokens=max(count, 16),
        max_positions=8192,
    )
    scheduler = Scheduler(limits, Stops(()))
    for request in requests_of(workload, vocab_size=_VOCAB_SIZE):
        scheduler.submit(request)
    under_way = _next(scheduler)
    plan_s = commit_s = 0.0
    for _ in range(num_steps):
        begin = time.perf_counter()
        plan = _next(scheduler)
        between = time.perf_counter()
        scheduler.commit(under_way, _sampled(count))
        plan_s, commit_s = plan_s + between - begin, commit_s + time.perf_counter() - between
        under_way = plan
    return plan_s / num_steps, commit_s / num_steps


def _next(scheduler: Scheduler) -> Plan:
    plan = scheduler.plan()
    assert plan is not None, "every request has tokens left"
    return plan


def _sampled(count: int) -> Sampled:
    logprobs = (-1.5,) * count
    return Sampled(tokens=(7,) * count, logprobs=logprobs, cut_logprobs=logprobs)
