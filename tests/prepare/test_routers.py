"""What is asked of routers is refused before the run where there are none, or where nothing is recorded."""

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.tree import Recipe
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.tiny import tiny_config
from dora_rl.prepare.model_directory import check_routers

EXPERTS = Experts(num_experts=4, num_active=2, intermediate_size=8, is_normalised=True)
MIXED: ModelConfig = replace(tiny_config(9), family="qwen3_moe", experts=EXPERTS)


def recipe(kind: str = "native", **trainer: object) -> Recipe:
    plain = Recipe()
    return replace(
        plain,
        trainer=replace(plain.trainer, **trainer),
        engine=replace(plain.engine, kind=kind),
    )


@pytest.mark.parametrize("asked", [{"router_replay": True}, {"load_balance": "model"}, {"load_balance": 0.1}])
def test_a_model_without_experts_has_no_routers(asked: dict[str, object]) -> None:
    check_routers(MIXED, recipe(**asked))
    with pytest.raises(ConfigError, match=f"trainer.{next(iter(asked))} is for a mixture of experts"):
        check_routers(tiny_config(9), recipe(**asked))


def test_other_engines_record_no_experts() -> None:
    check_routers(MIXED, recipe("vllm", load_balance="model"))
    with pytest.raises(ConfigError, match="an engine of kind 'vllm' does not record experts"):
        check_routers(MIXED, recipe("vllm", router_replay=True))
