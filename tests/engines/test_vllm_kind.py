"""vLLM as a kind, without vLLM: what is refused before a run begins, and in which words."""

from importlib.metadata import PackageNotFoundError

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, NoRoom
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.generation import EngineSettings
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import EngineDemand
from dora_rl.engines.vllm import minors
from dora_rl.engines.vllm.kind import VLLM
from dora_rl.model.tiny import tiny_config

DEMAND = EngineDemand(
    model=tiny_config(103, head_dim=32),
    recipe=Recipe(model="tiny", engine=EngineSettings(kind="vllm")),
    device="cpu",
    num_instances=2,
    free_bytes=4 * 2**30,
    longest_prompt=40,
    max_new_tokens=60,
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tested version of vLLM, as far as planning looks."""
    monkeypatch.setattr(minors, "version", lambda package: "0.32.0")


def with_engine(**settings: object) -> EngineDemand:
    return replace(DEMAND, recipe=replace(DEMAND.recipe, engine=EngineSettings(kind="vllm", **settings)))


def test_an_engine_is_sized_for_one_version(installed: None) -> None:
    assert load_kind("vllm") is VLLM
    sized = VLLM.size(DEMAND)
    limits = sized.config.limits
    assert (sized.config.max_versions, limits.max_positions) == (1, 101)
    assert limits.num_host_blocks == limits.num_blocks // 4 > 0
    assert sized.config.device_bytes == sized.versions_bytes + sized.kv_bytes + sized.workspace_bytes
    assert VLLM.size(replace(DEMAND, num_instances=1)).host_kv_bytes == 0
    assert VLLM.size(with_engine(host_kv_tokens=64)).config.limits.num_host_blocks == 2
    assert VLLM.size(with_engine(kv_tokens=320)).config.limits.num_blocks == 10
    with pytest.raises(NoRoom, match="an engine with 1 versions"):
        VLLM.size(replace(DEMAND, free_bytes=2**28))


def test_without_vllm_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(minors, "version", missing)
    with pytest.raises(ConfigError, match="needs vLLM, which is not installed") as refused:
        VLLM.size(DEMAND)
    assert "pip install" in (refused.value.hint or "")


def test_a_minor_that_was_never_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minors, "version", lambda package: "0.29.1")
    with pytest.raises(ConfigError, match=r"vLLM 0\.29\.1 was never run .* 0\.24, 0\.32 were"):
        VLLM.size(DEMAND)


def test_a_model_without_attention_on_cpus_is_refused(installed: None) -> None:
    small = replace(DEMAND, model=tiny_config(103))
    with pytest.raises(ConfigError, match="no attention on CPUs for heads of 16"):
        VLLM.size(small)
    assert VLLM.size(replace(small, device="cuda", free_bytes=2**34)).config.steps_ahead == 1


def test_what_vllm_does_not_record_is_refused(installed: None) -> None:
    recipe = replace(DEMAND.recipe, trainer=replace(DEMAND.recipe.trainer, router_replay=True))
    with pytest.raises(ConfigError, match=r"engine\.kind = vllm has no trainer\.router_replay"):
        VLLM.size(replace(DEMAND, recipe=recipe))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_invariant": True}, "batch_invariant"),
        ({"guessed_tokens": 3}, "guessed_tokens = 3"),
        ({"steps_ahead": 1}, "steps_ahead = 1, on a CPU"),
    ],
)
def test_what_vllm_does_not_do_is_refused(installed: None, settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"engine.kind = vllm has no engine.{words}"):
        VLLM.size(with_engine(**settings))
