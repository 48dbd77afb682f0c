"""The sections by name, and a run of some of them."""

from collections.abc import Callable, Iterator, Sequence

from dora_rl.core.errors import ConfigError, DoraError
from dora_rl.engines.bench.figures import Figures, Say
from dora_rl.engines.bench.sections.cpu import cpu
from dora_rl.engines.bench.sections.host import host
from dora_rl.engines.bench.sections.invariant import invariant
from dora_rl.engines.bench.sections.migrate import migrate
from dora_rl.engines.bench.sections.table import table
from dora_rl.engines.bench.sections.versions import versions
from dora_rl.engines.bench.sections.weights import weights
from dora_rl.engines.bench.setup import BenchSetup

Section = Callable[[BenchSetup, Say], Figures]

SECTIONS: dict[str, Section] = {
    "table": table,
    "invariant": invariant,
    "versions": versions,
    "weights": weights,
    "migrate": migrate,
    "host": host,
    "cpu": cpu,
}


def run_sections(names: Sequence[str], setup: BenchSetup, say: Say) -> Iterator[Figures]:
    """The figures of each section as they come; one that this device refuses says why."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise ConfigError(f"no section '{unknown[0]}'", hint=f"there are {', '.join(SECTIONS)}")
    for name in names:
        try:
            yield SECTIONS[name](setup, say)
        except DoraError as error:
            yield Figures(title=name, columns=("refused",), rows=((error.message,),))
