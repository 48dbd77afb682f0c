"""What resident versions cost: the same requests, all of one version or spread over up to four."""

from dora_rl.engines.bench.figures import Figures, Say
from dora_rl.engines.bench.setup import BenchSetup
from dora_rl.engines.bench.timing import timed
from dora_rl.engines.bench.workloads import Workload, requests_of

SHARES = (70, 20, 8, 2)
"""Per cent of the requests, newest version first."""
_ROWS = {"cuda": (256, 256), "cpu": (32, 32)}


def versions(setup: BenchSetup, say: Say) -> Figures:
    """One row for each number of versions that have requests; all four are resident throughout."""
    count, length = _ROWS[setup.device]
    prompt_tokens = setup.workloads[0].prompt_tokens
    workload = Workload(name=f"{count}x{length}", lengths=(length,) * count, prompt_tokens=prompt_tokens)
    engine = setup.engine([workload], num_versions=len(SHARES))
    rows, alone = [], 0.0
    for num_versions in range(1, len(SHARES) + 1):
        dealt = _dealt(count, num_versions)
        requests = requests_of(workload, vocab_size=setup.model.vocab_size, versions=dealt)
        speed = timed(engine, requests, setup.repeats).best_tokens_s
        alone = alone or speed
        counts = " ".join(str(dealt.count(version)) for version in range(num_versions))
        rows.append((num_versions, counts, round(speed, 1), f"{100 * speed / alone:.0f} %"))
        say(f"versions: {num_versions} with requests, {speed:,.0f} tokens/s")
    return Figures(
        title=f"versions at once, {workload.name}",
        columns=("versions", "requests of each", "tokens/s", "share"),
        rows=tuple(rows),
    )


def _dealt(count: int, num_versions: int) -> tuple[int, ...]:
    """The version of each request: the newest has what the others do not take."""
    older = [max(1, round(count * share / 100)) for share in SHARES[1:num_versions]]
    counts = [count - sum(older), *older]
    return tuple(version for version, number in enumerate(counts) for _ in range(number))
