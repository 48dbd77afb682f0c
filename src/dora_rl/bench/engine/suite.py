"""The sections by name, and a run of some of them."""

from collections.abc import Callable, Iterator, Sequence

from dora_rl.bench.engine.cpu import cpu
from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.features import invariant, versions, weights
from dora_rl.bench.engine.guesses import guesses
from dora_rl.bench.engine.migration import migrate
from dora_rl.bench.engine.scheduler_time import host
from dora_rl.bench.engine.throughput import table
from dora_rl.bench.figures import Figures, Say
from dora_rl.core.errors import ConfigError, DoraError

BenchSection = Callable[[EngineBench, Say], Figures]

SECTIONS: dict[str, BenchSection] = {
    "table": table,
    "invariant": invariant,
    "versions": versions,
    "weights": weights,
    "migrate": migrate,
    "host": host,
    "guesses": guesses,
    "cpu": cpu,
}


def run_sections(names: Sequence[str], setup: EngineBench, say: Say) -> Iterator[Figures]:
    """Run sections of the benchmark, yielding the figures of each; one that cannot run says why."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise ConfigError(f"no section '{unknown[0]}'", hint=f"there are {', '.join(SECTIONS)}")
    for name in names:
        try:
            yield SECTIONS[name](setup, say)
        except DoraError as error:
            yield Figures(title=name, columns=("refused",), rows=((error.message,),))
