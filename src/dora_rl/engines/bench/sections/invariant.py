"""What batch-invariant mode costs, on the middle workload."""

from dora_rl.engines.bench.figures import Figures, Say
from dora_rl.engines.bench.setup import BenchSetup
from dora_rl.engines.bench.timing import timed
from dora_rl.engines.bench.workloads import Workload, requests_of

_ROWS = {"cuda": (64, 256), "cpu": (8, 32)}


def invariant(setup: BenchSetup, say: Say) -> Figures:
    """The same requests in both modes."""
    count, length = _ROWS[setup.device]
    prompt_tokens = setup.workloads[0].prompt_tokens
    workload = Workload(name=f"{count}x{length}", lengths=(length,) * count, prompt_tokens=prompt_tokens)
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
