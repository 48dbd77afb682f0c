"""Kernels run on a GPU where there is one, else under Triton's interpreter on the CPU.

Without Triton not at all.
"""

from importlib.util import find_spec
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
