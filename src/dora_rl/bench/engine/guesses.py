"""What guesses at the next tokens give and cost: the last few requests of a batch, texts new and known."""

import statistics
from collections.abc import Iterator

from msgspec.structs import replace

from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.workloads import RequestWorkload, requests_of, run_s
from dora_rl.bench.figures import Cell, Figures, Say
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.requests import Request

ROWS = {"cuda": ((1, 256), (4, 256)), "cpu": ((1, 32), (4, 32))}
_GUESSED_TOKENS = 8
_RUNS = 3
"""Timed runs of each kind of text, after one that warms up."""


def guesses(setup: EngineBench, say: Say) -> Figures:
    """Measure tokens a second without and with guesses, in turns, on texts never seen and on texts replayed.

    Random weights draw text that does not repeat. Replayed text is guessed from its first tokens on; it is
    the same in batch-invariant mode alone, so that is the mode it is measured in.
    """
    prompt_tokens = setup.workloads[0].prompt_tokens
    workloads = [
        RequestWorkload(name=f"{count}x{length}", lengths=(length,) * count, prompt_tokens=prompt_tokens)
        for count, length in ROWS[setup.device]
    ]
    rows = []
    for is_replayed in (False, True):
        engines = [
            setup.engine(workloads, is_batch_invariant=is_replayed, guessed_tokens=most)
            for most in (0, _GUESSED_TOKENS)
        ]
        for row in _rows(setup, workloads, engines, is_replayed=is_replayed):
            rows.append(row)
            say(f"guesses: {row}")
        del engines
    return Figures(
        title=f"up to {_GUESSED_TOKENS} tokens guessed, {setup.shape}",
        columns=("requests x tokens", "text", "without, tokens/s", "with", "ratio", "guessed", "right"),
        rows=tuple(rows),
        note=f"medians of {_RUNS} runs in turns; replayed text in batch-invariant mode, without guesses too",
    )


def _rows(
    setup: EngineBench, workloads: list[RequestWorkload], engines: list[NativeEngine], *, is_replayed: bool
) -> Iterator[tuple[Cell, ...]]:
    for workload in workloads:
        requests = requests_of(workload, vocab_size=setup.model.vocab_size)
        times_s: list[list[float]] = [[], []]
        guessed_before, right_before = engines[1].guesses
        for run in range(1 + _RUNS):
            wanted = requests if is_replayed else _drawn_anew(requests, run)
            for engine, took_s in zip(engines, times_s, strict=True):
                took_s.append(run_s(engine, wanted))
        without, with_guesses = (workload.num_tokens / statistics.median(took_s[1:]) for took_s in times_s)
        num_guessed, num_right = engines[1].guesses
        yield (
            workload.name,
            "replayed" if is_replayed else "new",
            round(without, 1),
            round(with_guesses, 1),
            round(with_guesses / without, 3),
            num_guessed - guessed_before,
            num_right - right_before,
        )


def _drawn_anew(requests: list[Request], run: int) -> list[Request]:
    """The same requests with random streams that no other run has."""
    seed = 100 * len(requests) + run
    return [replace(each, key=replace(each.key, seed=seed)) for each in requests]
