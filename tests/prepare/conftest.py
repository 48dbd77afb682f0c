"""One thread, and the short run that the tests of runs have."""

from ..run.conftest import _one_thread, make_setup, model

__all__ = ["_one_thread", "make_setup", "model"]
