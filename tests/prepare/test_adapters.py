"""A run that starts from an adapter: which model it changes, and how it is trained on."""

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from dora_rl.api.loaded_models import LoadedModel
from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.live import WarmStart
from dora_rl.core.recipe.trainer_config import LoraConfig, TrainerConfig, TrainerSettings
from dora_rl.core.struct_loader import build
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import save_tiny
from dora_rl.prepare.messages import Given
from dora_rl.prepare.planner import RunPlanner, with_base
from dora_rl.prepare.sampling_inputs import prepare_sampling
from dora_rl.run.run_layout import LiveLayout
from dora_rl.trainer.adapter import merge_adapter
from dora_rl.trainer.trainer_factory import trainer_of
from dora_rl.weights.store import Store


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


def test_an_adapter_is_sampled_from_as_it_was_served(tmp_path: Path, model: Path) -> None:
    config = TrainerConfig(lora=LoraConfig(rank=2, alpha=4.0), serving_dtype="bfloat16")
    trainer = trainer_of(load_decoder(model, dtype=torch.float32), config)
    for name, master in trainer.weights.masters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(master, std=0.1)
    trainer.weights.refresh()
    checkpoint = trainer.take_checkpoint()
    assert checkpoint is not None
    checkpoint.write(tmp_path / "adapter", state="trainer", origin=model)
    tree = {
        "model": str(tmp_path / "adapter"),
        "data": {"train": {"name": "count", "options": {"rows": 4}}},
        "devices": {"kind": "cpu", "memory_gib": 8},
        # Of the run that made it, where a warm start made the model that is changed.
        "warm_start": {"steps": 3},
    }
    recipe = build(Recipe, tree, "the recipe of a test")
    (tmp_path / "target").mkdir()
    prepare_sampling(recipe, tmp_path / "target", lambda doing: None, Given(), is_judged=False)
    with Store(LiveLayout(root=tmp_path / "target").versions) as store:
        for name, own in store.fetch(0).items():
            assert torch.equal(own, trainer.served_tensors()[name]), name


@pytest.mark.parametrize(
    ("module", "rows", "words"),
    [
        ("model.layers.0.self_attn.q_proj", 3, "changes \\[3, 5\\]"),
        ("model.layers.99.self_attn.q_proj", 3, "only the adapter has 'model.layers.99"),
    ],
)
def test_an_adapter_of_another_model_is_refused_and_not_left_out(
    model: Path, module: str, rows: int, words: str
) -> None:
    factors = {
        f"{module}.lora_A.weight": torch.ones(2, 5),
        f"{module}.lora_B.weight": torch.ones(rows, 2),
    }
    with pytest.raises(ModelError, match=f"do not belong together.*{words}"):
        merge_adapter(load_decoder(model, dtype=torch.float32), LoraConfig(rank=2), factors)


# peft and what it imports warn about each other's versions.
@pytest.mark.filterwarnings("ignore")
def test_a_peft_model_in_memory_is_trained_on_from_its_adapter(tmp_path: Path, model: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded = peft.get_peft_model(whole, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"]))
    for name, parameter in loaded.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    LoadedModel(loaded, tokenizer).save(tmp_path / "given")
    tree = {
        "model": "object:model",
        "data": {"train": {"name": "count", "options": {"rows": 4}}},
        "batch": {"groups": 2, "group_size": 2},
        "devices": {"kind": "cpu", "memory_gib": 8},
        "trainer": {"serving_dtype": "float32"},
        "steps": 1,
    }
    recipe, given = build(Recipe, tree, "the recipe of a test"), Given(model=str(tmp_path / "given"))

    planner = RunPlanner(recipe, str(tmp_path / "run"), given=given)
    assert Path(planner.plan().setup.model_directory) == model
    (tmp_path / "inputs").mkdir()
    planner.write_inputs(tmp_path / "inputs")
    made = LiveLayout(root=tmp_path / "inputs")
    assert (made.initial_adapter / "adapter_model.safetensors").is_file()
    assert not made.initial_model.exists(), "an adapter is no model to begin with"

    (tmp_path / "target").mkdir()
    prepare_sampling(recipe, tmp_path / "target", lambda doing: None, given, is_judged=False)
    loaded.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged, before = (load_decoder(each, dtype=torch.float32) for each in (tmp_path / "merged", model))
    with Store(LiveLayout(root=tmp_path / "target").versions) as store:
        served = store.fetch(0)
    assert any(not torch.equal(own, before.get_parameter(name)) for name, own in served.items())
    for name, own in served.items():
        torch.testing.assert_close(own, merged.get_parameter(name), rtol=1e-5, atol=1e-7, msg=name)


class Named:
    """Has what is looked at of a peft model or a tokenizer in memory."""

    def __init__(self, name_or_path: str, *adapters: str) -> None:
        self.name_or_path = name_or_path
        self.peft_config = dict.fromkeys(adapters)

    def save_pretrained(self, directory: Path) -> None: ...


@pytest.mark.parametrize(
    ("loaded", "tokenizer", "words"),
    [
        (Named("base", "default", "other"), None, "with the adapters default, other"),
        (Named("", "default"), None, "does not say where its base was loaded from"),
        (Named("base", "default"), Named("another"), "the tokenizer is of 'another'"),
    ],
)
def test_a_peft_model_that_cannot_be_trained_on_as_it_is_is_refused(
    loaded: Named, tokenizer: Named | None, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as refused:
        LoadedModel(loaded, tokenizer)
    assert "merge_and_unload" in str(refused.value.hint)
