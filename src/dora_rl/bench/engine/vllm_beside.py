"""vLLM on the same workloads and device, in a process of its own, before our engine takes any memory."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.vllm_process import VllmAnswer, VllmJob
from dora_rl.bench.figures import Say
from dora_rl.model.hub_config import to_published

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def is_vllm_installed() -> bool:
    """Whether this interpreter could import vLLM."""
    return importlib.util.find_spec("vllm") is not None


def measure_vllm(setup: EngineBench, say: Say) -> VllmAnswer | None:
    """Run the workloads of a benchmark on vLLM; None if it did none of them, with what it said kept."""
    directory = Path(tempfile.mkdtemp(prefix="dora-vllm-"))
    model = msgspec.structs.replace(setup.model, dtype=setup.dtype)
    job = VllmJob(
        published=to_published(model),
        dtype=setup.dtype,
        workloads=setup.workloads,
        repeats=setup.repeats,
        least_s=setup.least_s,
    )
    (directory / "job.json").write_bytes(msgspec.json.encode(job))
    say(f"table: vLLM runs first, in a process of its own; it writes to {directory / 'log'}")
    status = _run(directory)
    answer = _answer(directory / "answer.json")
    tokens = {each.name: each.num_tokens for each in setup.workloads}
    times_s = {} if answer is None else answer.times_s
    for name, runs in times_s.items():
        say(
            f"table: {name} vLLM "
            + ", ".join(f"{tokens[name] / took_s:,.0f}" for took_s in runs)
            + " tokens/s"
        )
    if status == 0:
        shutil.rmtree(directory)
    else:
        say(
            f"table: vLLM failed with status {status} after {len(times_s)} workloads: see {directory / 'log'}"
        )
    return answer


def _run(directory: Path) -> int:
    module = "dora_rl.bench.engine.vllm_process"
    command = [sys.executable, "-m", module, str(directory / "job.json"), str(directory / "answer.json")]
    with (directory / "log").open("wb") as said:
        environment = _ENVIRONMENT | dict(os.environ)
        return subprocess.run(command, stdout=said, stderr=said, env=environment, check=False).returncode


def _answer(path: Path) -> VllmAnswer | None:
    return msgspec.json.decode(path.read_bytes(), type=VllmAnswer) if path.exists() else None
