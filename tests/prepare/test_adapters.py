"""A run that starts from an adapter: which model it changes, and how it is trained on."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.live import WarmStart
from dora_rl.core.recipe.trainer_config import LoraConfig, TrainerSettings
from dora_rl.model.tiny import save_tiny
from dora_rl.prepare.planner import with_base


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model")
    return tmp_path / "model"


def adapter_of(directory: Path, base: str) -> Path:
    """The configuration of an adapter, as peft writes it."""
    directory.mkdir()
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["v_proj", "q_proj"],
        "bias": "none",
        "modules_to_save": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return directory


def test_an_adapter_names_its_model_and_how_it_is_trained(tmp_path: Path, model: Path) -> None:
    adapter = adapter_of(tmp_path / "adapter", str(model))
    base, recipe = with_base(adapter, Recipe(model=str(adapter)))
    assert base == model.resolve()
    lora = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "v_proj"), adapter=str(adapter))
    assert recipe.trainer.lora == lora
    beside = Recipe(model=str(model), trainer=TrainerSettings(lora=LoraConfig(adapter=str(adapter))))
    assert with_base(model, beside) == (model, replace(beside, trainer=TrainerSettings(lora=lora)))


def test_an_adapter_needs_its_model_as_it_was(tmp_path: Path, model: Path) -> None:
    adapter = adapter_of(tmp_path / "adapter", str(model))
    with pytest.raises(ConfigError, match="a warm start would change the model"):
        with_base(adapter, Recipe(model=str(adapter), warm_start=WarmStart(steps=2)))
    nameless = adapter_of(tmp_path / "nameless", "")
    with pytest.raises(ModelError, match="does not name the model it changes"):
        with_base(nameless, Recipe(model=str(nameless)))
