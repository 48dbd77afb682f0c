"""Hypothesis profiles: `default` keeps the suite quick, `thorough` searches long.

Triton decides when it is first imported whether kernels are compiled or interpreted; without a GPU they can
only be interpreted.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from dora_rl.launch.local import LocalLaunch

from .forked_workers import ForkedPreparation
from .raylets import Raylets

settings.register_profile("default", max_examples=30, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("DORA_HYPOTHESIS_PROFILE", "default"))

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def raylets() -> Iterator[Raylets]:
    """A Ray cluster of three nodes, of this machine."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with Raylets(3, 2, 2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def forked_preparation() -> ForkedPreparation:
    return ForkedPreparation()


@pytest.fixture
def _quick_preparation(forked_preparation: ForkedPreparation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing workers do not import torch anew."""
    monkeypatch.setattr(LocalLaunch, "start", lambda *asked: forked_preparation.start(*asked))
