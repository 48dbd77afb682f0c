"""Other trainers' names: every answer names a key that exists, and the page is what errors say."""

from pathlib import Path

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.key_reference import sections
from dora_rl.core.recipe.peer_names import PEERS, page, suggestion
from dora_rl.core.recipe.resolution import resolve_recipe

PAGE = Path(__file__).parents[2] / "docs" / "coming_from.md"
EVERY = [(peer, entry) for peer, names in PEERS.items() for entry in names]


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_key_that_is_answered_exists() -> None:
    found = list(sections(Recipe))
    known = {each.path for each in found} | {
        f"{each.path}.{key.name}".lstrip(".") for each in found for key in each.keys
    }
    for peer, entry in EVERY:
        assert not entry.key or entry.key in known, f"{peer}: {entry}"
        assert entry.key or entry.how, f"{peer}: {entry}"


def test_a_name_stands_once_in_each_table() -> None:
    for names in PEERS.values():
        assert len({entry.name for entry in names}) == len(names)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (
            "max_completion_length=9",
            "what TRL calls 'max_completion_length' is 'response.max_new_tokens' here",
        ),
        ("gradient_accumulation_steps=4", "'trainer.micro_batch_tokens'"),
        ("save_steps=5", "what TRL and OpenRLHF call 'save_steps' is 'checkpoints.every' here"),
        ("num_train_epochs=2", "steps = rows x epochs / batch.groups"),
        (
            "actor_rollout_ref.rollout.n=8",
            "what verl calls 'actor_rollout_ref.rollout.n' is 'batch.group_size'",
        ),
        ("data.train_batch_size=64", "what verl calls 'data.train_batch_size' is 'batch.groups' here"),
        ("algorithm.adv_estimator=grpo", "is 'algorithm' here"),
        ("n_samples_per_prompt=8", "what OpenRLHF calls 'n_samples_per_prompt' is 'batch.group_size' here"),
        ("init_kl_coef=0.1", "'algorithm.kl.coefficient' here"),
        ("orchestrator.batch_size=128", "divided by group_size"),
        ("rollout.max_head_offpolicyness=2", "'control.max_staleness' here"),
        ("ppo_mini_batch_size=64", "updates = train_batch_size / ppo_mini_batch_size"),
        ("logging_steps=1", "every step is logged"),
        ("rollout.n=8", "'batch.group_size' here"),
    ],
)
def test_an_unknown_key_of_another_trainer_is_answered_with_ours(given: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as error:
        resolve_recipe(None, [given])
    assert hint in str(error.value.hint)


def test_a_file_of_another_trainer_is_answered_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "verl.yaml"
    path.write_text(
        "actor_rollout_ref: {rollout: {n: 8, temperature: 1.0}, actor: {grad_clip: 1.0, optim: {lr: 1}}}\n"
    )
    with pytest.raises(ConfigError, match="unknown key 'actor_rollout_ref'") as error:
        resolve_recipe(str(path))
    assert "'batch.group_size' here" in str(error.value.hint)
    assert "and 1 more: docs/coming_from.md" in str(error.value.hint)
    path.write_text("data: {train: count, max_response_length: 8}\n")
    with pytest.raises(ConfigError, match=r"unknown key 'data.max_response_length'") as error:
        resolve_recipe(str(path))
    assert "'response.max_new_tokens' here" in str(error.value.hint)


def test_a_name_that_nobody_has_is_not_answered() -> None:
    assert suggestion("frobnicate") is None
    assert suggestion("frobnicate", {"a": 1}) is None
