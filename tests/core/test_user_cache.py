"""Compilers keep what they compile where the user's cache is, and nobody is overruled."""

from pathlib import Path

import pytest

from dora_rl.core.user_cache import cache_directory, keep_compiled


def test_compiled_kernels_are_kept_in_the_cache_unless_somebody_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    environment = _environment(monkeypatch)
    keep_compiled()
    assert environment["TRITON_CACHE_DIR"] == "/elsewhere"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(cache_directory() / "compiled" / "torch")


def test_a_cache_that_cannot_be_made_leaves_compilers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setenv("DORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    environment = _environment(monkeypatch)
    keep_compiled()
    assert "TRITON_CACHE_DIR" not in environment


def _environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A copy of this process's environment, which takes what is set."""
    from dora_rl.core import user_cache

    environment = dict(user_cache.os.environ)
    monkeypatch.setattr(user_cache.os, "environ", environment)
    return environment
