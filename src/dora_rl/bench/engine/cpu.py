"""A real small model on the CPU, against `transformers` in the same run and vLLM's CPU build.

`generate` runs one padded batch, as its users run it: every row goes on until the longest is done, and only
the tokens asked for count. It gets the number of threads, up to ours, with which it is faster. It draws
without log-probabilities; the engine records them.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.reference import floor_verdict, references
from dora_rl.bench.engine.workloads import RequestWorkload, long_tail, parse_workload, requests_of, run_s
from dora_rl.bench.figures import Cell, Figures, Say
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.engine_factory import open_engine
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.paged import PagedCache
from dora_rl.engines.requests import Request
from dora_rl.model.hub_config import read_config
from dora_rl.model.smollm2 import save_smollm2

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NUM_THREADS = 2
_FLOOR = 3.0
_PROMPT_TOKENS = 32
_COLUMNS = ("workload", "ours tokens/s", "other", "its tokens/s", "ratio", "floor")
_TAIL = RequestWorkload(name="64xtail", lengths=long_tail(count=64, median=32), prompt_tokens=_PROMPT_TOKENS)


def cpu(setup: EngineBench, say: Say) -> Figures:
    """Measure SmolLM2-135M-Instruct in float32 on the CPU, or the model the setup names."""
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    try:
        if setup.directory is not None:
            return _measure(setup.directory, setup.cpu_tail or _TAIL, say)
        with tempfile.TemporaryDirectory() as scratch:
            save_smollm2(Path(scratch))
            return _measure(Path(scratch), setup.cpu_tail or _TAIL, say)
    finally:
        torch.set_num_threads(before)


def _measure(directory: Path, tail: RequestWorkload, say: Say) -> Figures:
    engine = _engine(directory, tail)
    vocab_size = read_config(directory / "config.json").vocab_size
    requests = requests_of(tail, vocab_size=vocab_size)
    run_s(engine, requests[:2])
    first_s = run_s(engine, requests)
    say(f"cpu: {tail.name} ours {tail.num_tokens / first_s:,.0f} tokens/s")
    generate_s = _generate_s(directory, requests, say)
    say(f"cpu: {tail.name} generate {tail.num_tokens / generate_s:,.0f} tokens/s")
    again_s, peak_tokens = _watched(engine, requests)
    ours_s = (first_s + again_s) / 2
    rows: list[tuple[Cell, ...]] = [
        _row(tail.name, tail.num_tokens / ours_s, "generate", tail.num_tokens / generate_s, _FLOOR)
    ]
    for name, reference in references().cpu.speeds.items():
        workload = parse_workload(name, tail.lengths, _PROMPT_TOKENS)
        if len(workload.lengths) <= len(tail.lengths):
            speed = workload.num_tokens / run_s(engine, requests_of(workload, vocab_size=vocab_size))
            rows.append(_row(name, speed, "vLLM CPU", reference.tokens_s, reference.floor_ratio))
            say(f"cpu: {name} ours {speed:,.0f} tokens/s")
    return Figures(
        title=f"{directory.name}, float32, {NUM_THREADS} threads: useful tokens a second",
        columns=_COLUMNS,
        rows=tuple(rows),
        note=_memory_note(directory, tail, peak_tokens),
    )


def _row(name: str, ours: float, other: str, its: float, floor: float | None) -> tuple[Cell, ...]:
    return name, round(ours, 1), other, round(its, 1), round(ours / its, 2), floor_verdict(ours / its, floor)


def _memory_note(directory: Path, tail: RequestWorkload, peak_tokens: int) -> str:
    cell_bytes = PagedCache.cell_bytes(read_config(directory / "config.json"), torch.float32)
    padded_tokens = len(tail.lengths) * (tail.longest - 1)
    ours, padded = (tokens * cell_bytes / 2**20 for tokens in (peak_tokens, padded_tokens))
    return f"{tail.name}: KV at its peak {ours:,.0f} MiB, of one padded batch {padded:,.0f} MiB"


def _engine(directory: Path, tail: RequestWorkload) -> NativeEngine:
    limits = Limits(
        num_blocks=tail.total_tokens // 32 + 2 * len(tail.lengths) + 256,
        max_running=len(tail.lengths),
        max_positions=max(tail.longest, 128),
    )
    return open_engine(directory, EngineConfig(limits=limits, max_versions=1))


def _watched(engine: NativeEngine, requests: Sequence[Request]) -> tuple[float, int]:
    """Seconds of a run, and the most tokens of KV in use at once."""
    peak_tokens, begin = 0, time.perf_counter()
    for request in requests:
        engine.submit(request)
    while engine.step():
        peak_tokens = max(peak_tokens, engine.load().kv_tokens)
    took_s = time.perf_counter() - begin
    assert len(engine.finished()) == len(requests)
    return took_s, peak_tokens


# --- transformers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """All requests as one padded batch, as `generate` of transformers takes them."""

    model: "PreTrainedModel"
    prompts_RT: torch.Tensor

    def run_s(self, num_tokens: int) -> float:
        """Seconds to generate so many tokens of every row."""
        from transformers import GenerationConfig

        config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, max_new_tokens=num_tokens, pad_token_id=0
        )
        begin = time.perf_counter()
        with torch.inference_mode():
            tokens = self.model.generate(  # type: ignore[operator]
                self.prompts_RT, attention_mask=torch.ones_like(self.prompts_RT), generation_config=config
            )
        assert tokens.shape[1] == self.prompts_RT.shape[1] + num_tokens, "it stopped early"
        return time.perf_counter() - begin


def _generate_s(directory: Path, requests: Sequence[Request], say: Say) -> float:
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    # What the directory says about sampling and stopping is no part of the workload.
    model.generation_config = GenerationConfig()
    batch = PaddedBatch(model, torch.tensor([each.prompt for each in requests]))
    num_threads = _fastest_threads(lambda: batch.run_s(4))
    say(f"cpu: generate is fastest with {num_threads} threads")
    torch.set_num_threads(num_threads)
    try:
        return batch.run_s(max(each.stopping.max_new_tokens for each in requests))
    finally:
        torch.set_num_threads(NUM_THREADS)


def _fastest_threads(work: Callable[[], float]) -> int:
    times_s = {}
    for num_threads in range(1, NUM_THREADS + 1):
        torch.set_num_threads(num_threads)
        times_s[num_threads] = min(work() for _ in range(2))
    return min(times_s, key=times_s.__getitem__)
