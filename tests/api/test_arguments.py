"""Keywords of a call: everything a recipe can say, TRL's names, and objects in the place of names."""

import pickle
import threading

import pytest

from dora_rl.api.arguments import Asked
from dora_rl.api.entry_points import train
from dora_rl.api.given import write_table
from dora_rl.api.objects import objects_named
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe import Recipe
from dora_rl.envs.tasks import load_task

ROWS = [{"prompt": "one", "solution": "1"}, {"prompt": "two", "solution": "2"}]


def longer(completions, **columns):
    return [float(len(text)) for text in completions]


def asked(base=None, **given):
    return Asked(base, given)


def test_sections_and_ends_of_paths_are_keywords():
    recipe = asked(steps=7, batch={"groups": 4}, max_staleness=2, learning_rate=1e-4).recipe
    assert (recipe.steps, recipe.batch.groups, recipe.control.max_staleness) == (7, 4, 2)
    assert recipe.optimizer.learning_rate == 1e-4
    assert recipe.batch.group_size == Recipe().batch.group_size


def test_a_shipped_recipe_a_recipe_object_and_a_mapping_are_where_a_call_may_start():
    assert asked("demo", steps=3).recipe.model == "tiny"
    assert asked("demo").name == "demo"
    assert asked(Recipe(steps=5), seed=1).recipe == Recipe(steps=5, seed=1)
    assert asked({"steps": 5}, seed=1).recipe == Recipe(steps=5, seed=1)


def test_an_unknown_keyword_names_the_nearest_key():
    with pytest.raises(ConfigError) as error:
        asked(max_stalenes=2)
    assert "max_staleness" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"num_generations": 4}, lambda r: r.batch.group_size == 4),
        ({"max_completion_length": 99}, lambda r: r.response.max_new_tokens == 99),
        ({"max_steps": 3}, lambda r: r.steps == 3),
        ({"beta": 0.1}, lambda r: r.algorithm.kl.coefficient == 0.1),
        ({"beta": 0.0}, lambda r: r.algorithm.kl is None),
        ({"epsilon": 0.1}, lambda r: (r.algorithm.loss.clip_low, r.algorithm.loss.clip_high) == (0.1, 0.1)),
        ({"epsilon": 0.1, "epsilon_high": 0.3}, lambda r: r.algorithm.loss.clip_high == 0.3),
        ({"loss_type": "dapo"}, lambda r: r.algorithm.loss.clip_high == 0.28),
        ({"scale_rewards": False}, lambda r: r.algorithm.advantage.scale == "none"),
        (
            {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "num_generations": 8},
            lambda r: (r.batch.groups, r.batch.group_size) == (4, 8),
        ),
        ({"report_to": "none"}, lambda r: r.run.trackers == ()),
        ({"report_to": "wandb"}, lambda r: r.run.trackers == ("wandb",)),
        ({"output_dir": "out"}, lambda r: r.run.directory == "out"),
        (
            {"save_steps": 5, "save_total_limit": 3},
            lambda r: (r.checkpoints.every, r.checkpoints.keep) == (5, 3),
        ),
        (
            {"lr_scheduler_type": "cosine", "warmup_steps": 2, "max_steps": 9},
            lambda r: r.optimizer.learning_rate_schedule.total_updates == 9,
        ),
    ],
)
def test_names_of_trl_mean_what_they_mean_there(given, read):
    assert read(asked(**given).recipe)


def test_what_has_no_counterpart_is_refused_with_the_reason():
    for name in ("num_iterations", "bf16", "args"):
        with pytest.raises(ConfigError, match=f"there is no '{name}' here") as refused:
            asked(**{name: 4})
        assert refused.value.hint
    with pytest.raises(ConfigError, match="no whole groups"):
        asked(per_device_train_batch_size=3, num_generations=8)


def test_rows_and_functions_are_named_and_kept_beside_the_recipe():
    found = asked(
        model="tiny", train_dataset=ROWS, eval_dataset=ROWS[:1], reward_funcs=[longer, "exact_match"]
    )
    recipe = found.recipe
    assert recipe.data is not None
    assert recipe.data.train.name == "object:rows"
    assert recipe.data.held_out is not None
    assert found.tables["object:rows"] is ROWS
    assert [reward.function for reward in recipe.rewards] == ["object:longer", "exact_match"]
    assert recipe.rewards[0].label == "longer"
    assert found.objects.of("longer") is longer


def test_rewards_may_come_with_weights_and_options():
    found = asked(rewards=[(longer, 0.5), {"function": lambda completions: [0.0], "per": "group"}])
    first, second = found.recipe.rewards
    assert (first.weight, second.per, second.function) == (0.5, "group", "object:reward")
    (named,) = asked(rewards=[{"function": longer, "name": "mine"}]).recipe.rewards
    assert (named.function, named.label) == ("object:longer", "mine")
    assert [
        r.weight for r in asked(rewards=[longer, "exact_match"], reward_weights=[2, 3]).recipe.rewards
    ] == [2, 3]
    with pytest.raises(ConfigError, match="3 reward_weights for 1"):
        asked(rewards=longer, reward_weights=[1, 2, 3])


def test_two_functions_of_one_name_have_two_labels():
    found = asked(rewards=[lambda completions: [0.0], lambda completions: [1.0]])
    assert [reward.label for reward in found.recipe.rewards] == ["reward", "reward_2"]


def test_closures_are_packed_and_what_cannot_be_is_named_with_the_reason():
    bonus, lock = 3.0, threading.Lock()

    def closure(completions, **columns):
        return [bonus] * len(completions)

    def stuck(completions, **columns):
        with lock:
            return [0.0]

    sent, kept = asked(rewards=[closure, stuck]).objects.packed()
    assert list(sent) == ["closure"]
    assert "lock" in kept["stuck"]


def test_a_loss_that_cannot_be_sent_is_refused_with_the_reason():
    lock = threading.Lock()

    def held(logprobs, advantages):
        with lock:
            return -advantages * logprobs

    objects = asked(loss=held).objects
    with pytest.raises(UserError, match=r"the loss 'held' cannot be sent to the trainer's process.*lock"):
        objects.check_sent(objects.packed()[1])


def test_a_run_with_objects_is_not_resumed_without_them():
    found = asked(rewards=[longer, lambda completions: [0.0]])
    found.objects.check_complete(found.recipe)
    with pytest.raises(UserError, match=r"reward \(rewards\)"):
        asked(rewards=[longer]).objects.check_complete(found.recipe)


def test_a_tokenizer_alone_and_a_thing_that_is_no_model_are_refused():
    with pytest.raises(ConfigError, match="without a loaded model"):
        asked(model="tiny", tokenizer=object())
    with pytest.raises(UserError, match="model is dict"):
        asked(model={"weights": 1})


@pytest.mark.parametrize(
    "given",
    [
        {"num_generations": 8, "batch": {"group_size": 4}},
        {"num_generations": 8, "group_size": 4},
        {"per_device_train_batch_size": 16, "num_generations": 8, "batch": {"groups": 4}},
        {"max_completion_length": 9, "response": {"max_new_tokens": 8}},
        {"max_steps": 3, "steps": 4},
    ],
)
def test_two_names_of_one_key_may_not_differ(given):
    with pytest.raises(ConfigError, match="says") as refused:
        asked(**given)
    assert refused.value.hint == "give one of the two"


def test_two_names_of_one_key_may_agree():
    recipe = asked(num_generations=4, batch={"group_size": 4, "groups": 2}).recipe
    assert (recipe.batch.groups, recipe.batch.group_size) == (2, 4)


def test_only_a_recipe_is_given_by_position():
    with pytest.raises(ConfigError, match="only a recipe") as refused:
        train("tiny", ROWS)
    assert "train(model=..., data=..., rewards=[...])" in (refused.value.hint or "")
    with pytest.raises(ConfigError, match="'tiny' is a model, not a recipe"):
        train("tiny")
    with pytest.raises(ConfigError, match="only a recipe"):
        train(ROWS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_step": 3}, "on_step is int"),
        ({"model": "nope"}, "there is no model 'nope'"),
        ({"data": {"order": "shuffled"}}, "data.train"),
        ({"steps": "ten"}, "'steps' cannot be 'ten'"),
    ],
)
def test_mistakes_are_told_before_any_process_starts(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class NoLaunch:
        def start(self, *others):
            raise AssertionError("a process was started")

    with pytest.raises(UserError, match=message):
        train("demo", launch=NoLaunch(), progress=False, **given)


@pytest.mark.parametrize(
    ("hint", "note"),
    [
        (
            "it fits with trainer.lora.rank=16 (3 GiB) or with trainer.gradient_checkpointing=true (4 GiB)",
            'it fits with trainer={"lora": {"rank": 16}} (3 GiB) or with '
            'trainer={"gradient_checkpointing": True} (4 GiB)',
        ),
        ("give a directory, or tiny: --set model=...", "give a directory, or tiny: model=..."),
        ("set devices.kind=cpu, or --set model=tiny", 'set devices={"kind": "cpu"}, or model="tiny"'),
        ("set evaluation.every=0.", 'set evaluation={"every": 0}.'),
        ("train(model=..., data=rows)", "train(model=..., data=rows)"),
    ],
)
def test_a_traceback_shows_a_hint_in_keywords(hint, note):
    error = ConfigError("wrong", hint=hint)
    assert error.hint == hint
    assert error.__notes__ == [f"hint: {note}"]


# --- rows of several kinds -----------------------------------------------------------------------


def endless():
    while True:
        yield {"prompt": "p"}


def test_a_function_that_yields_rows_is_a_stream():
    found = asked(data=endless)
    assert (found.recipe.data.train.name, found.recipe.data.train.stream) == ("object:the rows", True)
    sent, kept = found.objects.packed()
    assert list(sent) == ["the rows"]
    assert not kept
    named = asked(data={"train": {"name": endless, "columns": {"prompt": "q"}}, "max_prompt_tokens": 9})
    assert named.recipe.data.train.stream
    assert named.recipe.data.train.columns == {"prompt": "q"}


def test_a_stream_that_cannot_be_sent_says_what_to_give_instead():
    found = asked(data={"train": {"name": endless(), "stream": True}})
    with pytest.raises(UserError, match=r"stream of rows cannot be sent .*generator") as error:
        found.objects.check_sent(found.objects.packed()[1])
    assert "data=rows and not data=rows()" in str(error.value.hint)


def test_a_generator_without_end_is_an_error_and_no_hang(tmp_path):
    with pytest.raises(UserError, match="data gave 100,000 rows and goes on") as error:
        write_table(endless(), tmp_path / "rows.msgpack")
    assert "give the function that yields them" in str(error.value.hint)


def test_several_tables_may_have_weights():
    found = asked(data=[(ROWS, 3), ("more.jsonl", 1)])
    train = found.recipe.data.train
    assert [(part.name, part.weight, part.source_label) for part in train.parts] == [
        ("object:rows_0", 3.0, "rows_0"),
        ("more.jsonl", 1.0, "more"),
    ]
    assert found.tables["object:rows_0"] is ROWS
    assert [part.name for part in asked(data=["a.jsonl", {"name": "b.jsonl"}]).recipe.data.train.parts] == [
        "a.jsonl",
        "b.jsonl",
    ]
    assert asked(data=ROWS).recipe.data.train.parts == ()


def test_a_run_that_was_given_a_stream_is_resumed_with_it():
    recipe = asked(data=endless).recipe
    with pytest.raises(UserError, match=r"the rows \(data\)"):
        objects_named({}).check_complete(recipe)
    objects_named({"data": endless}).check_complete(recipe)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"data": ["say a:", "say b:"]}, "data has the text 'say a:'", "a row is a mapping"),
        ({"data": {"prompt": ["a"], "letter": ["a"]}}, "a mapping of columns, not rows", "from_dict"),
        ({"rewards": [[1.0]]}, "a reward is a function", "without calling it"),
        ({"batch": {"groups": 2, "updates": 3}}, "2 cannot be split into batch.updates = 3", "at most 2"),
        ({"lora": {"rank": 4, "targets": ["c_attn"]}}, "targets names c_attn", "choose of q_proj, "),
    ],
)
def test_what_newcomers_give_by_mistake_is_answered_with_what_to_give(given, message, hint):
    with pytest.raises(ConfigError) as caught:
        asked(**given)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_environment_factory_is_an_episode_and_needs_no_rows():
    class Game:
        def reset(self, **columns):
            return "go"

    def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    asked = Asked(
        None, {"model": "tiny", "environment_factory": Game, "reward_funcs": [lambda completions: [0.0]]}
    )
    assert (asked.recipe.data.train.name, asked.recipe.episode.function) == (
        "seeds",
        "object:EnvironmentEpisode",
    )
    assert len(asked.recipe.rewards) == 1
    sent, kept = asked.objects.packed()
    assert (set(sent), kept) == ({"EnvironmentEpisode", "reward"}, {})
    assert callable(pickle.loads(sent["EnvironmentEpisode"]))
    asked = Asked(None, {"model": "tiny", "tools": [double], "data": [{"prompt": "2?"}]})
    assert asked.recipe.data.train.name == "object:rows"
    with pytest.raises(ConfigError, match="all say what is played"):
        Asked(None, {"model": "tiny", "tools": [double], "episode": "x.py:play"})


def test_a_task_that_is_given_brings_its_episode():
    asked = Asked(None, {"model": "tiny", "data": load_task("tools", seed=0, options={"rows": 2})})
    assert asked.recipe.episode.function.endswith("tools:calculator")
