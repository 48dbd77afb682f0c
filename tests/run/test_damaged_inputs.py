"""What a run begins with, damaged: a sentence with the file, whoever reads it."""

from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.run import request_table
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.request_table import RequestMoves


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x81\xa5train\x01", b"\x81\xa1\xff\x01", None])
def test_damaged_prompts_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.msgpack"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"prompts of the run cannot be read from .*prompts") as refused:
        PromptTable.read(path)
    assert refused.value.hint


def test_a_name_taken_in_shared_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody: Any = None
    monkeypatch.setattr(request_table, "Path", lambda name: tmp_path)
    moves = RequestMoves(tmp_path / "run", nobody, nobody)
    (taken,) = tmp_path.glob("dora-kv-*")
    moves.close()
    taken.write_text("a file of somebody else")
    with pytest.raises(UserError, match=r"requests cannot move through .*dora-kv-") as refused:
        RequestMoves(tmp_path / "run", nobody, nobody)
    assert "remove it" in (refused.value.hint or "")
