"""`dora doctor --model`: what works with a model, or the one sentence why nothing does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dora_rl.bench.tiny_models import save_tiny_hf
from dora_rl.prepare import planner

from .conftest import Called

Dora = Callable[..., Called]


def checks(called: Called) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for check in json.loads(called.out):
        found.setdefault(check["name"], []).append(check)
    return found


def test_a_model_of_transformers_is_told_from_a_native_one(dora: Dora, tmp_path: Path, model: Path) -> None:
    foreign = save_tiny_hf("gpt2", tmp_path)
    called = dora("doctor", "--model", foreign, "--json")
    found = checks(called)
    assert called.exit_code == 0
    assert f"{foreign}, gpt2, 123,072 parameters" in found["model"][0]["text"]
    assert "does not know it: model type 'gpt2'" in found["trainer"][0]["text"]
    assert found["engine"][0]["text"] == "transformers, on CPUs"
    (memory,) = found["memory"]
    assert memory["text"].startswith("as it is: the trainer ")
    refused = {each["text"].partition(":")[0]: each for each in found["refused"]}
    assert {"devices.kind=cuda", "trainer.compile=true", "trainer.lora.rank=16"} <= refused.keys()
    assert "its matrices are c_attn" in refused["trainer.lora.rank=16"]["hint"]

    own = checks(dora("doctor", "--model", model, "--json"))
    assert own["trainer"][0]["text"] == "the native decoder"
    assert own["engine"][0]["text"].startswith("native, on CPUs")
    assert [each["text"].partition(":")[0] for each in own["memory"]] == ["as it is", "trainer.lora.rank=16"]
    assert "trainer.compile=true" not in str(own.get("refused"))


def test_a_model_that_is_not_there_is_one_sentence_and_an_exit_code(dora: Dora, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody_knows"}')
    for name, reason in (("nosuch", "there is no model 'nosuch'"), (tmp_path, "'nobody_knows'")):
        called = dora("doctor", "--model", name)
        assert called.exit_code == 1
        assert reason in called.out
        assert called.out.splitlines()[-1] == "missing: model"


def test_too_little_memory_is_a_note_that_names_the_place(
    dora: Dora, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "free_memory_bytes", lambda: 2**20)
    (plain, _) = checks(dora("doctor", "--model", model, "--json"))["memory"]
    assert plain["state"] == "note"
    assert plain["hint"].startswith("cpu has too little, as others use")
