"""On a CUDA device the same bytes come out, and the same weights."""

from pathlib import Path

import pytest
import torch

from dora_rl.weights.difference import encode_all
from dora_rl.weights.store import Store
from dora_rl.weights.strips import strips_in

from .versions import history, same_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("density", [0.001, 0.02, 0.5, 1.0])
def test_a_device_encodes_as_the_host_does(dtype: torch.dtype, density: float) -> None:
    old, new = history(2, dtype=dtype, density=density)
    strips = strips_in(old)
    on_host = encode_all(strips, [strip.strung(old) for strip in strips], new)
    old, new = ({name: each.cuda() for name, each in version.items()} for version in (old, new))
    on_device = encode_all(strips, [strip.strung(old) for strip in strips], new)
    for here, there in zip(on_host, on_device, strict=True):
        assert there.base_sum == here.base_sum
        assert torch.equal(there.positions, here.positions)
        assert torch.equal(there.planes, here.planes)


def test_versions_go_from_device_to_device(tmp_path: Path) -> None:
    versions = history(5, density=0.1)
    with Store(tmp_path) as store:
        for number, tensors in enumerate(versions):
            store.publish(number, {name: each.cuda() for name, each in tensors.items()})
        base = {name: each.cuda() for name, each in versions[1].items()}
        delta = store.fetch_delta(4, 1, base)
        for name, change in delta.items():
            base[name].view(-1).index_copy_(0, change.indices_N, change.values_N)
        for found in (base, store.fetch(4, "cuda")):
            assert all(each.is_cuda for each in found.values())
            assert same_bits({name: each.cpu() for name, each in found.items()}, versions[4])
