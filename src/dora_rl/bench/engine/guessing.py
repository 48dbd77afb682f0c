"""What guesses at the next tokens give and cost: the last few requests of a batch, texts new and known."""

import statistics
from collections.abc import Iterator

from msgspec.structs import replace

from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.workloads import RequestWorkload, requests_of, run_s
from dora_rl.bench.figures import Cell, Figures, Say
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.requests import Request

_ROWS = {"cuda": ((1, 256), (4, 256)), "cpu": ((1, 32), (4, 32))}
_GUESSED_TOKENS = 8
_RUNS = 5
"""Timed runs of each kind of text, after one that warms up."""


def guesses(setup: EngineBench, say: Say) -> Figures:
    """Measure tokens a second without and with guesses, in turns, on texts never seen and on texts replayed.

    Random weights draw text that does not repeat. What is replayed is guessed right from its first tokens on.
    """
    prompt_tokens = setup.workloads[0].prompt_tokens
    workloads = [
        RequestWorkload(name=f"{count}x{length}", lengths=(length,) * count, prompt_tokens=prompt_tokens)
        for count, length in _ROWS[setup.device]
    ]
    engines = [setup.engine(workloads, guessed_tokens=most) for most in (0, _GUESSED_TOKENS)]
    rows = []
    for workload in workloads:
        for row in _rows(setup, workload, engines):
            rows.append(row)
            say(f"guesses: {row}")
    return Figures(
        title=f"up to {_GUESSED_TOKENS} tokens guessed, {setup.shape}",
        columns=("requests x tokens", "text", "without, tokens/s", "with", "ratio", "guessed", "right"),
        rows=tuple(rows),
        note=f"medians of {_RUNS} runs in turns",
    )


def _rows(
    setup: EngineBench, workload: RequestWorkload, engines: list[NativeEngine]
) -> Iterator[tuple[Cell, ...]]:
    requests = requests_of(workload, vocab_size=setup.model.vocab_size)
    for text in ("new", "replayed"):
        times_s: list[list[float]] = [[], []]
        made = engines[1].guesses
        for run in range(1 + _RUNS):
            wanted = _drawn_anew(requests, run) if text == "new" else requests
            for engine, took_s in zip(engines, times_s, strict=True):
                took_s.append(run_s(engine, wanted))
        without, with_guesses = (workload.num_tokens / statistics.median(took_s[1:]) for took_s in times_s)
        num_guessed, num_right = (
            after - before for after, before in zip(engines[1].guesses, made, strict=True)
        )
        ratio = round(with_guesses / without, 3)
        yield workload.name, text, round(without, 1), round(with_guesses, 1), ratio, num_guessed, num_right


def _drawn_anew(requests: list[Request], run: int) -> list[Request]:
    """The same requests with other random streams."""
    return [replace(each, key=replace(each.key, seed=100 + run)) for each in requests]
