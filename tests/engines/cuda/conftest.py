"""Kernels run on a GPU where there is one, else under Triton's interpreter on the CPU.

Without Triton not at all.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels run."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True, scope="session")
def _interpreter_knows_numpy() -> None:
    """From NumPy 2.4 on, an array of one element is no longer a number, which the interpreter relies on."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_again(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor_again


@pytest.fixture
def some_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A GPU for which no choice of kernels is on disk yet."""
    from dora_rl.engines.native.cuda.tiles import choices  # Needs Triton.

    monkeypatch.setenv("DORA_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    choices.cache_clear()
    yield
    choices.cache_clear()
