"""What `dora bench control` does: measure one size after the other, and say how far it is."""

from collections.abc import Callable
from time import monotonic

from dora_rl.observe.live.words import duration
from dora_rl.sim.bench import QUICK, Report, Scope, run_bench

_STEP_S = 1.5e-3
"""CPU seconds for a step of one instance, as measured with 10,240 of them; small sizes take less."""


def bench_control(scope: Scope, say: Callable[[str], None]) -> Report:
    """`say` hears at once how long it may take, then a line for every part that is measured."""
    parts = [*(f"{number:,} instances" for number in scope.sizes), "single rebalances", "lines of Python"]
    began, done = monotonic(), 0

    def advance(what: str) -> None:
        nonlocal began, done
        now = monotonic()
        following = f"; next {parts[done + 1]}" if done + 1 < len(parts) else ""
        say(f"{done + 1}/{len(parts)} {parts[done]}: {duration(now - began)}{following}")
        began, done = now, done + 1

    if scope != QUICK:
        seconds = _STEP_S * scope.steps * (sum(scope.sizes) + scope.rebalance_instances)
        most = parts[len(scope.sizes) - 1]
        say(
            f"takes about {duration(seconds)} of one free core, most of it for {most}; "
            "--quick takes a few seconds"
        )
    return run_bench(scope, advance)
