"""What a run takes follows from its work, and a hint about memory was tried."""

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, NoRoom
from dora_rl.core.recipe import Batch, Cluster, Control, Recipe
from dora_rl.core.recipe.episodes import EpisodeSettings, RoleSettings
from dora_rl.core.recipe.generation import EngineSettings, ResponseSettings
from dora_rl.core.recipe.live import Devices
from dora_rl.core.recipe.trainer_config import LoraConfig, TrainerSettings
from dora_rl.engines.native.engine_size import size_engine
from dora_rl.engines.protocol import EngineDemand
from dora_rl.model.random_models import SHAPES
from dora_rl.prepare.run_memory import RunMemory
from dora_rl.prepare.run_plan import MemoryLimit
from dora_rl.prepare.ways_to_fit import how_to_fit
from dora_rl.run.run_setup import DeviceLayout

SMOLLM2 = SHAPES["smollm2-135m"]
PROCESS_BYTES = 300 * 2**20
GIB = 2**30


def small_work(**sections: object) -> Recipe:
    """Four groups of four short responses a step; sections given here replace these."""
    asked = {
        "model": "smollm2",
        "batch": Batch(groups=4, group_size=4),
        "response": ResponseSettings(max_new_tokens=24),
        "engine": EngineSettings(kind="native"),
    } | sections
    return replace(Recipe(), **asked)


def memory_of(recipe: Recipe, gib: float = 21.0) -> RunMemory:
    limits = [MemoryLimit(name="cpu", num_bytes=int(gib * GIB))]
    return RunMemory(recipe, SMOLLM2, DeviceLayout(), limits, 26)


def needed_within(gib: float):
    """Counts a recipe on a machine of so much memory, as the planner does."""

    def needed(recipe: Recipe) -> str | None:
        memory = memory_of(recipe, recipe.devices.memory_gib or gib)
        try:
            memory.counted(PROCESS_BYTES)
        except NoRoom:
            return None
        return memory.figures()

    return needed


def test_a_pass_holds_no_more_than_an_update():
    assert memory_of(small_work()).pass_tokens == 16 * 50
    halved = small_work(batch=Batch(groups=4, group_size=4, updates=2))
    assert memory_of(halved).pass_tokens == 8 * 50
    few = small_work(trainer=TrainerSettings(micro_batch_tokens=10))
    assert memory_of(few).pass_tokens == 50, "a trajectory is never divided"
    many = small_work(batch=Batch(groups=64, group_size=16))
    assert memory_of(many).pass_tokens == 16_384


def test_a_small_step_of_a_small_model_fits_into_little_memory_as_it_is():
    memory = memory_of(small_work(), gib=7.0)
    engine = memory.counted(PROCESS_BYTES)
    assert engine.max_versions == 4
    assert memory.figures().endswith("of 7.0 GiB")


def test_an_engine_has_a_workspace_for_each_of_its_threads_whoever_counts_it():
    def workspace(threads: int) -> int:
        limits = [MemoryLimit(name="cpu", num_bytes=8 * GIB)]
        layout = DeviceLayout(instance_threads=threads)
        return RunMemory(small_work(), SMOLLM2, layout, limits, 26).add_engines().workspace_bytes

    assert workspace(2) > workspace(1)


def test_kv_is_for_what_can_be_active_not_for_every_slot():
    tokens = {
        batch.groups: limits.num_blocks * limits.block_size
        for batch in (Batch(groups=1, group_size=4), Batch(groups=64, group_size=16))
        if (limits := memory_of(small_work(batch=batch)).counted(PROCESS_BYTES).limits)
    }
    assert tokens[1] < tokens[64] / 10
    assert memory_of(small_work()).counted(PROCESS_BYTES).limits.max_running == Recipe().cluster.slots


def test_kv_of_less_than_a_sequence_is_no_matter_of_memory():
    with pytest.raises(ConfigError, match="kv_tokens = 32 hold no sequence of 51") as refused:
        memory_of(small_work(engine=EngineSettings(kind="native", kv_tokens=32))).counted(PROCESS_BYTES)
    assert refused.value.hint == "set it to 64 at least, or leave it out"
    memory_of(small_work(engine=EngineSettings(kind="native", kv_tokens=64))).counted(PROCESS_BYTES)


def test_an_instance_that_could_not_take_up_the_next_version_is_refused():
    with pytest.raises(ConfigError, match="max_versions = 1 leaves no room for the next version") as refused:
        memory_of(small_work(cluster=Cluster(max_versions=1))).counted(PROCESS_BYTES)
    assert refused.value.hint == "set cluster.max_versions=2 or more, or leave it out"
    assert memory_of(small_work(cluster=Cluster(max_versions=2))).counted(PROCESS_BYTES).max_versions == 2


def test_a_frozen_version_is_one_more_on_every_instance_and_needs_room_for_it() -> None:
    roles = {"user": RoleSettings(version="initial")}
    plain = memory_of(small_work(cluster=Cluster(max_versions=9))).counted(PROCESS_BYTES)
    engine = memory_of(small_work(roles=roles, cluster=Cluster(max_versions=9))).counted(PROCESS_BYTES)
    assert engine.max_versions == plain.max_versions + 1
    with pytest.raises(
        ConfigError, match="max_versions = 2 leaves no room for the frozen version"
    ) as refused:
        memory_of(small_work(roles=roles, cluster=Cluster(max_versions=2))).counted(PROCESS_BYTES)
    assert refused.value.hint == "set cluster.max_versions=3 or more, or leave it out"


def test_an_engine_has_room_for_the_versions_that_its_schedule_can_have():
    sync = small_work(control=Control(schedule="sync"))
    assert memory_of(sync).counted(PROCESS_BYTES).max_versions == 2


def test_every_change_that_is_named_makes_it_fit():
    """Found at the least memory that the recipe itself does not fit into."""
    recipe, gib = small_work(trainer=TrainerSettings(serving_dtype="float32")), 6.5
    needed = needed_within(gib)
    assert needed(recipe) is None
    hint = how_to_fit(recipe, needed)
    assert "trainer.serving_dtype=bfloat16 (" in hint
    assert f"of {gib} GiB)" in hint
    assert "micro_batch_tokens" not in hint, "it is as small as the step already"


def test_a_smaller_bound_is_named_with_the_greatest_that_fits():
    recipe = small_work()
    needed = needed_within(5.4)
    fitting = [b for b in (3, 2, 1) if needed(replace(recipe, control=Control(max_staleness=b)))]
    assert fitting == [2, 1], "the machine of this test is too small, or too large"
    assert "control.max_staleness=2 (" in how_to_fit(recipe, needed)


def test_nobody_with_adapters_is_told_to_use_them():
    recipe = small_work(trainer=TrainerSettings(lora=LoraConfig()))
    assert "lora" not in how_to_fit(recipe, lambda recipe: None)
    assert "lora" not in how_to_fit(recipe, lambda recipe: "1.0 of 2.0 GiB")


def test_where_one_change_is_not_enough_several_are_tried_and_named():
    def needed(recipe: Recipe) -> str | None:
        fits = recipe.trainer.gradient_checkpointing and recipe.trainer.lora is not None
        return "1.0 of 2.0 GiB" if fits else None

    both = "trainer.gradient_checkpointing=true and trainer.lora.rank=16"
    assert how_to_fit(small_work(), needed) == f"it fits with {both} (1.0 of 2.0 GiB)"


def test_where_nothing_is_enough_nothing_is_promised():
    hint = how_to_fit(small_work(), lambda recipe: None)
    assert hint.startswith("use a smaller model, or a machine with more memory: even with")


def test_a_limit_of_the_users_own_may_be_what_is_in_the_way():
    recipe = small_work(devices=Devices(memory_gib=0.5))
    assert how_to_fit(recipe, needed_within(21.0)).startswith("it fits with devices.memory_gib=null (")


def test_episodes_may_wait_in_host_memory_where_it_is_apart() -> None:
    def host_blocks(recipe: Recipe, host_bytes: int | None) -> int:
        demand = EngineDemand(
            model=SMOLLM2,
            recipe=recipe,
            device="cpu",
            num_instances=1,
            free_bytes=8 * GIB,
            longest_prompt=26,
            max_new_tokens=24,
            free_host_bytes=host_bytes,
        )
        limits = size_engine(demand).config.limits
        assert 4 * limits.num_host_blocks <= limits.num_blocks
        return limits.num_host_blocks

    played = small_work(episode=EpisodeSettings(function="play.py:play"))
    assert host_blocks(small_work(), 4 * GIB) == 0, "nobody would wait there"
    assert host_blocks(played, None) == 0, "host and device are one memory"
    assert host_blocks(played, 4 * GIB) > 0
    assert host_blocks(played, 0) == 0
    asked = small_work(episode=played.episode, engine=EngineSettings(host_kv_tokens=0))
    assert host_blocks(asked, 4 * GIB) == 0
