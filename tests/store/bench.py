"""How fast a journal takes what a run gives it, on the disk of a given directory.

    python tests/store/bench.py [DIRECTORY]

Each commit holds 100 inputs and 1 MB of tokens and logprobs: of trajectories that are complete at once, or in
chunks of many trajectories, each completed with its last. Wall time is the disk's and the other processes'
as well; CPU time is the journal's own.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dora_rl.core.decisions import Admit, Start, Take
from dora_rl.core.history import Event
from dora_rl.core.inputs import LoadReport, Published
from dora_rl.core.recipe import Batch, Recipe
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import AnyPayload, Progress, PromptTokens, Rewarded
from dora_rl.store.reconcile import reconcile

GROUP_SIZE = 8
PROMPT_TOKENS = 128
NUM_INPUTS = 100
PAYLOAD_BYTES = 1_000_000
BYTES_PER_TOKEN = 8
NUM_COMMITS = 200


def reports() -> list[Event]:
    report = LoadReport(at=1234.5678, instance=7, clock=123456.0, kv_tokens=1_234_567, step_s=0.0213)
    return [(report, [])] * NUM_INPUTS


def start_all(journal: Journal, num_groups: int) -> None:
    """All groups the benchmark will write."""
    for group in range(num_groups):
        decisions = [Admit(group=group, version=0, epoch=0, row=group)]
        starts = [
            Start(instance=0, version=0, trajectory=GROUP_SIZE * group + m, group=group, epoch=0, row=group,
                  member=m, attempt=0, prompt_tokens=PROMPT_TOKENS) for m in range(GROUP_SIZE)]  # fmt: skip
        event = LoadReport(at=0.0, instance=0, clock=0.0, kv_tokens=0, step_s=0.01)
        payload = PromptTokens(group=group, tokens=tuple(range(PROMPT_TOKENS)))
        journal._db.execute("PRAGMA synchronous=OFF")
        journal.append([(event, [*decisions, *starts])], [payload])
    journal._db.execute("PRAGMA synchronous=FULL")


def chunk(trajectory: int, first: int, count: int) -> Progress:
    return Progress(trajectory=trajectory, attempt=0, start=first, tokens=tuple(range(first, first + count)),
                    version=0, logprobs=(-0.6931,) * count)  # fmt: skip


def endings(trajectory: int, num_tokens: int) -> list[AnyPayload]:
    return [
        Progress(trajectory=trajectory, attempt=0, start=num_tokens, tokens=(), version=None, is_last=True),
        Rewarded(trajectory=trajectory, attempt=0, reward=1.0, values={"accuracy": 1.0, "format": 0.0}),
    ]


def whole(num_tokens: int) -> Iterator[list[AnyPayload]]:
    """Commits of complete trajectories."""
    per_commit = PAYLOAD_BYTES // (BYTES_PER_TOKEN * num_tokens)
    for i in range(NUM_COMMITS):
        keys = range(i * per_commit, (i + 1) * per_commit)
        yield [p for t in keys for p in (chunk(t, 0, num_tokens), *endings(t, num_tokens))]


def chunked(num_tokens: int, size: int) -> Iterator[list[AnyPayload]]:
    """Commits of chunks of many trajectories in turn; each is completed with its last chunk."""
    num_active = PAYLOAD_BYTES // (BYTES_PER_TOKEN * size)
    for i in range(NUM_COMMITS):
        first, base = i * size % num_tokens, i * size // num_tokens * num_active
        payloads: list[AnyPayload] = []
        for t in range(base, base + num_active):
            payloads.append(chunk(t, first, size))
            if first + size == num_tokens:
                payloads += endings(t, num_tokens)
        yield payloads


def measure(name: str, num_tokens: int, commits: list[list[AnyPayload]], directory: Path) -> None:
    path = directory / "journal.sqlite"
    keys = {p.trajectory for payloads in commits for p in payloads if not isinstance(p, PromptTokens)} or {0}
    recipe = Recipe(batch=Batch(groups=1, group_size=GROUP_SIZE))
    with Journal.create(path, recipe) as journal:
        start_all(journal, max(keys) // GROUP_SIZE + 1)
        size_before = path.stat().st_size
        times_s = []
        cpu_before = time.process_time()
        for payloads in commits:
            began = time.perf_counter()
            journal.append(reports(), payloads)
            times_s.append(time.perf_counter() - began)
        cpu_ms = 1e3 * (time.process_time() - cpu_before) / len(commits)
        journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        added = path.stat().st_size - size_before
        num_events = len(commits) * NUM_INPUTS
        total_s = sum(times_s)
        times_ms = sorted(1e3 * t for t in times_s)
        print(
            f"{name:26} {num_events / total_s:7,.0f} inputs/s, commit median "
            f"{statistics.median(times_ms):6.1f} ms, 99 % {times_ms[int(0.99 * len(times_ms))]:6.1f} ms, "
            f"CPU {cpu_ms:5.1f} ms; file {added / num_events:5,.0f} bytes/input, "
            f"{added / len(keys):8,.0f} bytes/trajectory of {BYTES_PER_TOKEN * num_tokens:,}"
        )
        if name.startswith("whole"):
            measure_reading(journal, directory)


def measure_reading(journal: Journal, directory: Path) -> None:
    began = time.perf_counter()
    num_events = sum(1 for _ in journal.events())
    print(f"  read back {num_events / (time.perf_counter() - began):,.0f} inputs/s", end="")
    began = time.perf_counter()
    reconcile(directory / "events.jsonl", journal)
    print(f", event log written from the journal {num_events / (time.perf_counter() - began):,.0f}/s", end="")
    scored = {s.trajectory for s in journal.summaries() if s.state == "scored"}
    groups = tuple(g for g in range(max(scored) // GROUP_SIZE) if GROUP_SIZE * g + GROUP_SIZE - 1 in scored)
    take = Take(batch=0, groups=groups, staleness=(0,) * len(groups))
    journal.append([(LoadReport(at=0.0, instance=0, clock=0.0, kv_tokens=0, step_s=0.01), [take])])
    journal.append([(Published(at=1.0, version=1, train_s=1.0), [])])
    began = time.perf_counter()
    (_,) = journal.batches_after(0)
    print(f"; a batch of {len(groups) * GROUP_SIZE:,} read in {time.perf_counter() - began:.2f} s", end="")
    journal.covered(1)
    began = time.perf_counter()
    journal.prune()
    print(f", pruned in {time.perf_counter() - began:.2f} s")


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    with tempfile.TemporaryDirectory(dir=place) as directory:
        cases: dict[str, tuple[int, list[list[AnyPayload]]]] = {
            "inputs alone": (1, [[] for _ in range(NUM_COMMITS)]),
            "whole, 2,048 tokens each": (2048, list(whole(2048))),
            "chunks of 64, 2,048 each": (2048, list(chunked(2048, 64))),
            "chunks of 512, 2,048 each": (2048, list(chunked(2048, 512))),
        }
        for name, (num_tokens, commits) in cases.items():
            inner = Path(directory) / str(len(name))
            inner.mkdir(exist_ok=True)
            for old in inner.iterdir():
                old.unlink()
            measure(name, num_tokens, commits, inner)


if __name__ == "__main__":
    main()
