"""Who trains and who generates follows from the model or from what was asked; the rest is a sentence."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.bench.tiny_models import save_tiny_hf
from dora_rl.core.errors import ConfigError, ModelError, NotNative
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.generation import EngineSettings
from dora_rl.core.recipe.live import Devices
from dora_rl.core.recipe.trainer_config import LoraConfig, TrainerSettings
from dora_rl.model.tiny import save_tiny
from dora_rl.prepare.model_choice import computing_note, read_checked, with_computing


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("native")
    save_tiny(directory)
    return directory


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_hf("gpt2", tmp_path_factory.mktemp("gpt2"))


def asked(trains: str = "auto", generates: str = "auto", **trainer: object) -> Recipe:
    return Recipe(
        trainer=TrainerSettings(model=trains, **trainer),  # type: ignore[arg-type]
        engine=EngineSettings(kind=generates),
    )


@pytest.mark.parametrize(
    ("trains", "generates", "expected"),
    [
        ("auto", "auto", ("native", "native")),
        ("transformers", "auto", ("transformers", "transformers")),
        ("auto", "transformers", ("transformers", "transformers")),
        ("auto", "mine.py:KIND", ("native", "mine.py:KIND")),
    ],
)
def test_a_known_family_is_native_unless_somebody_asks(
    native: Path, trains: str, generates: str, expected: tuple[str, str]
) -> None:
    found = with_computing(asked(trains, generates), native)
    assert (found.trainer.model, found.engine.kind) == expected


def test_an_unknown_family_is_for_transformers_and_the_plan_says_why(foreign: Path, native: Path) -> None:
    found = with_computing(asked(), foreign)
    assert (found.trainer.model, found.engine.kind) == ("transformers", "transformers")
    note = computing_note(found, read_checked(found, foreign))
    assert note == (
        "computed by transformers (the native decoder does not know it: model type 'gpt2' is not supported)"
    )
    known = with_computing(asked(), native)
    assert computing_note(known, read_checked(known, native)) == ""
    as_asked = with_computing(asked("transformers"), native)
    assert "(as asked)" in computing_note(as_asked, read_checked(as_asked, native))


def test_what_cannot_be_is_a_sentence(native: Path, foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.kind = native does not serve what trainer\.model = tr"):
        with_computing(asked("transformers", "native"), native)
    with pytest.raises(NotNative, match="model type 'gpt2' is not supported"):
        read_checked(with_computing(asked("native"), foreign), foreign)
    with pytest.raises(ConfigError, match=r"trainer\.attention = padded is not for a model that native"):
        with_computing(asked(attention="padded"), native)
    with pytest.raises(ConfigError, match=r"trainer\.attention = varlen is not for a model that tr"):
        with_computing(asked(attention="varlen"), foreign)
    with pytest.raises(ConfigError, match="compiles the native decoder"):
        with_computing(asked(compile=True), foreign)
    with pytest.raises(ConfigError, match="not split over several trainer ranks"):
        with_computing(replace(asked(), devices=Devices(trainer_ranks=2)), foreign)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobody_knows"}))
    with pytest.raises(ModelError, match="does not open a model of type 'nobody_knows'"):
        read_checked(with_computing(asked(), tmp_path), tmp_path)


def test_what_this_model_cannot_be_asked_for_is_a_sentence(foreign: Path, tmp_path: Path) -> None:
    mamba = save_tiny_hf("mamba", tmp_path)
    with pytest.raises(
        ConfigError, match=r"attention = packed is not for this model: it has layers of type linear"
    ):
        read_checked(with_computing(asked(attention="packed"), mamba), mamba)
    for directory, own in (
        (foreign, "c_attn, c_fc, c_proj"),
        (mamba, "dt_proj, embeddings, in_proj, out_proj"),
    ):
        with pytest.raises(ConfigError, match=r"lora\.targets .* match no matrix of this model") as refused:
            read_checked(with_computing(asked(lora=LoraConfig()), directory), directory)
        assert f"its matrices are {own}, " in str(refused.value.hint)


def test_a_damaged_weight_file_is_found_before_the_run(foreign: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((foreign / name).read_bytes()[: 200 if "model" in name else None])
    with pytest.raises(ModelError, match="is damaged"):
        read_checked(with_computing(asked(), tmp_path), tmp_path)
