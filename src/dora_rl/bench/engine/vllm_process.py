"""The process that measures vLLM: `python -m dora_rl.bench.engine.vllm_process JOB ANSWER`.

The same shape with random weights, prompts and lengths as ours; every token with the log-probability it was
drawn at, stop tokens ignored, no prompt kept from one run to the next. Everything else is as vLLM chooses.
The answer is written anew after every workload, so one that fails leaves those before it. vLLM is imported
here and nowhere else.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.bench.engine.workloads import RequestWorkload, requests_of, timed_runs
from dora_rl.core.record import Record
from dora_rl.engines.requests import Request
from dora_rl.model.config import Dtype


class VllmJob(Record, frozen=True):
    """What vLLM is to run."""

    published: dict[str, Any]
    """Contents of the model's `config.json`."""
    dtype: Dtype
    workloads: tuple[RequestWorkload, ...]
    repeats: int
    """Timed runs of each workload, after one that warms up."""
    least_s: float
    """Least seconds of timed runs of a workload: short ones are repeated until then."""


class VllmAnswer(Record, frozen=True):
    """What vLLM took."""

    version: str
    times_s: dict[str, tuple[float, ...]]
    """Seconds of each timed run, by the workload's name."""


def measure(job: VllmJob, answer: Path) -> None:
    """Run all workloads of a job on one engine, and write down what they took."""
    import vllm  # type: ignore[import-not-found, unused-ignore]

    directory = answer.parent / "model"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(job.published))
    engine = vllm.LLM(
        model=str(directory),
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=job.dtype,
        max_model_len=max(each.longest for each in job.workloads),
        max_num_seqs=max(len(each.lengths) for each in job.workloads),
        enable_prefix_caching=False,
    )
    times_s: dict[str, tuple[float, ...]] = {}
    for workload in job.workloads:
        requests = requests_of(workload, vocab_size=job.published["vocab_size"])
        times_s[workload.name] = runs = timed_runs(
            partial(_run_s, engine, requests), job.repeats, job.least_s
        )
        print(workload.name, *(f"{workload.num_tokens / took_s:,.0f}" for took_s in runs), flush=True)
        answer.write_bytes(msgspec.json.encode(VllmAnswer(version=vllm.__version__, times_s=times_s)))


def _run_s(engine: Any, requests: list[Request]) -> float:
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": list(each.prompt)} for each in requests]
    lengths = [each.stopping.max_new_tokens for each in requests]
    sampling = [
        SamplingParams(
            temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False, seed=None
        )
        for length in lengths
    ]
    begin = time.perf_counter()
    ended = engine.generate(prompts, sampling, use_tqdm=False)
    took_s = time.perf_counter() - begin
    for length, output in zip(lengths, ended, strict=True):
        (completion,) = output.outputs
        assert len(completion.token_ids) == len(completion.logprobs) == length, "it stopped early"
    return took_s


if __name__ == "__main__":
    measure(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=VllmJob), Path(sys.argv[2]))
