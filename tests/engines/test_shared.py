"""A request that moves to a second process through shared memory draws what it would have drawn."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.engine import NativeEngine
from dora_rl.engines.native.shared import SHARED_MEMORY, share, take_shared
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey

MakeEngine = Callable[..., NativeEngine]

RECEIVER = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from dora_rl.model.hub_config import read_config
from dora_rl.engines.native.engine import NativeEngine
from dora_rl.engines.native.setup import EngineConfig
from dora_rl.engines.native.shared import take_shared
from dora_rl.engines.native.scheduling.limits import Limits
from dora_rl.engines.native.scheduling.stops import Stops

if sys.argv[1] == "cuda":
    from dora_rl.engines.native.cuda import CUDA as backend
else:
    from dora_rl.engines.native.executor import CPU as backend
model, *shared = map(Path, sys.argv[2:])
limits = Limits(num_blocks=80, block_size=5, num_host_blocks=80, max_running=4, max_positions=512)
config = EngineConfig(limits=limits, is_batch_invariant=True)
engine = NativeEngine(read_config(model / "config.json"), config, Stops([2]), backend=backend)
engine.load_version(1, model)
for path in shared:
    engine.import_request(take_shared(path))
print(json.dumps([[event.id, event.tokens, event.logprobs] for event in engine.run()]))
"""


def request(number: int) -> Request:
    return Request(
        id=number,
        version=1,
        prompt=tuple(3 + (number * 7 + i) % 90 for i in range(10 + number)),
        key=StreamKey(seed=4, row=number),
        sampling=Sampling(temperature=0.8),
        stopping=Stopping(max_new_tokens=24, is_length_prescribed=True),
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """In shared memory where there is any."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else tmp_path


def test_another_process_goes_on_with_the_same_tokens(
    make_engine: MakeEngine, directories: list[Path], directory: Path, backend: Backend
) -> None:
    undisturbed, engine = (make_engine(is_batch_invariant=True) for _ in range(2))
    for number in range(3):
        undisturbed.submit(request(number))
        engine.submit(request(number))
    expected = {each.id: each for each in undisturbed.run() if isinstance(each, Finished)}
    for _ in range(6):
        engine.step()
    paths = [share(engine.export_request(number), directory) for number in range(3)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600] * 3
    command = [sys.executable, "-c", RECEIVER, backend.torch_device, str(directories[1]), *map(str, paths)]
    received = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {number for number, _, _ in received} == expected.keys()
    for number, tokens, logprobs in received:
        assert (tuple(tokens), tuple(logprobs)) == (expected[number].tokens, expected[number].logprobs)
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kv_arrives_bit_for_bit(make_engine: MakeEngine, tmp_path: Path, dtype: str) -> None:
    engine = make_engine(dtype=dtype)
    engine.submit(request(3))
    engine.step()
    sent = engine.export_request(3)
    received = take_shared(share(sent, tmp_path))
    assert received.header == sent.header
    assert sent.kv is not None
    assert received.kv is not None
    assert torch.equal(received.kv.cpu(), sent.kv.cpu())
    assert not list(tmp_path.iterdir())


def test_a_request_without_kv_travels_too(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine()
    engine.submit(request(3))
    sent = engine.export_request(3)
    assert take_shared(share(sent, tmp_path)) == sent


def test_what_is_not_ours_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no shared request"):
        take_shared(tmp_path / "absent")
    engine = make_engine()
    engine.submit(request(3))
    engine.step()
    path = share(engine.export_request(3), tmp_path)
    path.chmod(0o644)
    with pytest.raises(RequestError, match="no private file"):
        take_shared(path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(RequestError, match="no shared request"):
        take_shared(link)
    whole = path.read_bytes()
    for damaged in (whole[:40], whole[:-8], b"\xff" * 64, whole.replace(b'"F32"', b'"F99"')):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match="no exported request"):
            take_shared(path)
    path.write_bytes(whole)
    assert take_shared(path).header.request.id == 3
