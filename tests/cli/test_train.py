"""`dora train`: a recipe in; everything a newcomer may get wrong is one sentence, a hint and an exit code."""

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from dora_rl.api import work
from dora_rl.control.fleet import Fleet, Instance
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.history import HistoryWriter
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Lognormal, Recipe
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.struct_loader import to_yaml
from dora_rl.engines.native.paged import PagedCache
from dora_rl.model.hub_config import read_config
from dora_rl.observe.run_plan_view import show_plan
from dora_rl.prepare import planner
from dora_rl.prepare.machine import Gpu
from dora_rl.prepare.run_plan import RunPlan

Dora = Callable[..., Any]


class PreparedHere(nullcontext["PreparedHere"]):
    """A preparation without a process of its own."""

    def __init__(self, recipe: Recipe, run_directory: str, **options: object) -> None:
        super().__init__(self)
        self._planner = planner.RunPlanner(recipe, run_directory)

    def plan(self, tell: object) -> RunPlan:
        return self._planner.plan()

    def finish(self, tell: object) -> Path:
        return Path("inputs")


@pytest.fixture(autouse=True)
def _plan_here(monkeypatch: pytest.MonkeyPatch) -> None:
    # Importing torch once is enough.
    monkeypatch.setattr(work, "Preparation", PreparedHere)
    torch.set_num_threads(1)


def check(called: Any, message: str, hint: str = "") -> None:
    error, *rest = called.err.strip().splitlines()
    assert called.exit_code == 2, called.err
    assert called.out == ""
    assert message in error
    assert error.startswith("error: ")
    assert len(rest) == 1, called.err
    assert len(rest[0]) < 300, "a hint is read at a glance"
    assert rest[0].startswith("hint: ")
    assert hint in rest[0]


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["dmeo"], "there is no recipe named 'dmeo'", "did you mean 'demo'?"),
        (["none.yaml"], "there is no recipe file none.yaml", "demo"),
        (["recipe.yaml", "--set", "stepps=3"], "unknown key 'stepps'", "did you mean 'steps'"),
        (["recipe.yaml", "--set", "model=missing"], "there is no model 'missing'", "tiny"),
        (["recipe.yaml", "--set", "model=tinny"], "there is no model 'tinny'", "did you mean 'tiny'?"),
        (["recipe.yaml", "--set", "model=Qwen2.5-7B"], "no model is named to train", "tiny"),
        (["recipe.yaml", "--set", "model=."], "no config.json", "Hugging Face format"),
        (["recipe.yaml", "--set", "data.train.name=none.jsonl"], "there is no file none.jsonl", "path"),
        (["recipe.yaml", "--set", "data.train.name=cuont"], "there is no task 'cuont'", "count"),
        (["recipe.yaml", "--set", "data=null"], "names no rows", "data.train.name"),
        (["recipe.yaml", "--set", "rewards=[]"], "nothing judges the rows", "reward function"),
        (["recipe.yaml", "--set", "max_new_tokens=null"], "how long a response may be", "max_new_tokens"),
        (["recipe.yaml", "--set", "max_new_tokens=5000"], "the model has 2048", "max_new_tokens"),
        (["recipe.yaml", "--set", "memory_gib=0.1"], "needs about", "fits with devices.memory_gib=null ("),
        (["recipe.yaml", "--set", "evaluation.every=2"], "no rows are held out", "held_out_share"),
        (["recipe.yaml", "--set", "algorithm=gropo"], "unknown algorithm 'gropo'", "'grpo'"),
        (["recipe.yaml", "--set", "devices.kind=cuda"], "no GPU", "dora doctor"),
        (["recipe.yaml", "--set", "devices.trainer_ranks=0"], "trainer_ranks", ">= 1"),
        (["recipe.yaml", "--set", "run.directory=."], "exists and is not empty", "--resume"),
        (["recipe.yaml", "--set", "run.directory=judge.py"], "judge.py is a file", "run.directory="),
        (["recipe.yaml", "--set", "run.directory=judge.py/x"], "judge.py is a file", "run.directory="),
        (["recipe.yaml", "--set", "S=0"], "unknown key 'S'", "did you mean 'control.max_staleness'?"),
        (["recipe.yaml", "--set", "zzz=0"], "unknown key 'zzz'", "the nearest keys are"),
        (["recipe.yaml", "--set", "rewards[0].weight=2"], "one entry of the list 'rewards'", "'rewards=["),
        (["--resume", "nowhere"], "is no run directory", "path"),
        (
            ["recipe.yaml", "--set", "data.train.columns={prompt: promt}"],
            "no column 'promt'",
            "did you mean 'prompt'?",
        ),
        (
            ["recipe.yaml", "--set", "rewards=[{function: accuracy_rewad}]"],
            "no built-in reward 'accuracy_rewad'",
            "accuracy_reward",
        ),
        (
            ["recipe.yaml", "--set", "rewards=[{function: 'judge.py:lenght'}]"],
            "has no 'lenght'",
            "did you mean 'length'?",
        ),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="one case needs a machine without GPUs")
def test_a_mistake_is_a_sentence_and_a_hint(
    dora: Dora, project: Path, arguments: list[str], message: str, hint: str
) -> None:
    check(dora("train", *arguments), message, hint)
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (
            "import no_such_module",
            "line 3: ModuleNotFoundError",
            "install the package that has 'no_such_module', or mend",
        ),
        ("def judge(:", "line 3: SyntaxError", "judge.py, line 3; `python "),
        ("1 / 0", "line 3: ZeroDivisionError", "judge.py, line 3; `python "),
        ("import sys; sys.exit(0)", "line 3: SystemExit: 0", "__main__"),
    ],
)
def test_a_reward_that_does_not_import_is_named_with_its_line(
    dora: Dora, project: Path, code: str, message: str, hint: str
) -> None:
    (project / "judge.py").write_text(f"import json\n\n{code}\n")
    called = dora("train", "recipe.yaml")
    check(called, f"judge.py, {message}", hint)
    assert "pip install" not in called.err, "a module's name is not always that of its package"


def test_a_model_without_a_tokenizer_is_said_to_have_none(dora: Dora, project: Path, model: Path) -> None:
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        shutil.copy(model / name, project)
    check(dora("train", "recipe.yaml", "--set", "model=."), "no tokenizer", "copy tokenizer.json")


def test_a_loss_of_ones_own_that_cannot_work_is_named_before_the_run(dora: Dora, project: Path) -> None:
    code = "def mean(logprobs, advantages):\n    return (logprobs * advantages).mean()\n"
    (project / "losses.py").write_text(code)
    called = dora("train", "recipe.yaml", "--set", "algorithm.loss=losses.py:mean")
    check(called, "losses.py:mean' returned a single number for 7 tokens", "return one number a token")
    called = dora("train", "recipe.yaml", "--set", "algorithm.loss=losses.py:maen")
    check(called, "losses.py has no 'maen'", "did you mean 'mean'?")
    called = dora("train", "recipe.yaml", "--set", "algorithm.advantage=losses.py:mean")
    check(called, "cannot be called without 'logprobs'", "it is given rewards")


def test_a_reward_that_needs_another_column_is_an_error_before_the_run(dora: Dora, project: Path) -> None:
    judge = project / "judge.py"
    judge.write_text(judge.read_text().replace("solution", "solutions"))
    check(dora("train", "recipe.yaml"), "needs a column 'solutions'", "did you mean 'solution'?")


def test_a_column_that_some_rows_have_is_enough(dora: Dora, project: Path) -> None:
    (project / "rows.jsonl").write_text('{"prompt": "a:"}\n{"prompt": "b:", "solution": "b"}\n')
    assert dora("train", "recipe.yaml", "--dry-run").exit_code == 0


def test_hints_do_not_ask_for_what_is_there(dora: Dora, project: Path) -> None:
    (project / "rows.jsonl").write_text('{"prompt": "a:", "solution": "b"}\n')
    share = ("--set", "data.held_out_share=0.1", "--set", "evaluation.every=2")
    check(dora("train", "recipe.yaml", *share), "no rows are held out", "more than one row")
    short = ("--set", "data.max_prompt_tokens=1", "--set", "data.overlong_prompts=skip")
    check(dora("train", "recipe.yaml", *short), "1 of 1 prompts", "the shortest prompt has 2")


def test_too_little_memory_for_the_engine_is_said_with_figures(dora: Dora, project: Path) -> None:
    # A large engine: what a process takes in itself varies by some MiB from one to the next.
    large = ("--set", "engine.step_tokens=400000")
    fits = json.loads(dora("train", "recipe.yaml", "--dry-run", "--json", *large).out)
    used = sum(entry["num_bytes"] for entry in fits["memory"])
    engine = sum(entry["num_bytes"] for entry in fits["memory"] if "instance" in entry["what"])
    # Enough for the trainer, not for all the versions of the engine.
    gib = (used - 0.9 * engine) / 0.9 / 2**30
    called = dora("train", "recipe.yaml", "--set", f"memory_gib={gib}", *large)
    check(called, "GiB are left for it", "it fits with engine.step_tokens=512 (")
    assert "devices.memory_gib=null (" in called.err


def test_a_cache_that_cannot_be_written_is_named(
    dora: Dora, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DORA_CACHE", str(project / "judge.py"))
    check(
        dora("train", "recipe.yaml", "--set", "model=tiny"), "judge.py/models: Not a directory", "DORA_CACHE"
    )


def test_a_run_that_cannot_be_written_is_not_resumed(dora: Dora, project: Path) -> None:
    root = a_run(project / "run")
    (root / "setup.json").write_text("{}")
    (root / "lock").unlink(missing_ok=True)
    (root / "lock").mkdir()
    check(dora("train", "--resume", str(root)), "cannot be written: Is a directory", "dora report")


def test_arguments_that_contradict_each_other_are_a_usage_error(dora: Dora, project: Path) -> None:
    for arguments in ([], ["demo", "--resume", "runs/x"], ["--resume", "runs/x", "--dry-run"]):
        called = dora("train", *arguments)
        assert called.exit_code == 2
        assert "Traceback" not in called.err


def a_run(root: Path) -> Path:
    root.mkdir()
    (root / "recipe.yaml").write_text(to_yaml(Recipe()))
    with HistoryWriter(root / "events.jsonl", Recipe()):
        pass
    return root


def test_a_run_that_goes_on_is_not_resumed(dora: Dora, project: Path) -> None:
    root = a_run(project / "busy")
    with (root / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        check(dora("train", "--resume", root), "is going on in another process", "wait")


# --- what it says before it starts ---


def test_what_a_recipe_asks_for_in_vain_is_said_before_the_run(dora: Dora, project: Path) -> None:
    sets = ["sampling.top_p=0.9", "algorithm.preset=decoupled_ppo", "cluster.gpus=3", "warm_start.rate=0.1"]
    called = dora("train", "recipe.yaml", "--dry-run", *(word for each in sets for word in ("--set", each)))
    said = [line for line in called.err.splitlines() if line.startswith("warning: ")]
    for words in (
        "sampling is cut",
        "is exactly 1",
        "cluster.gpus is for `dora simulate`",
        "warm_start.rate is set",
    ):
        assert any(words in line for line in said), words
    assert len(said) == len(sets)


def test_a_dry_run_shows_recipe_devices_processes_memory_and_disk(dora: Dora, project: Path) -> None:
    called = dora("train", "recipe.yaml", "--dry-run", "--set", "max_staleness=1")
    assert (called.exit_code, called.err) == (0, "")
    for word in (
        "max_staleness: 1",
        "105,",
        "1 orchestrator, 1 instance, 1 trainer, 1 reward worker",
        "4 to train on",
        "1 x length",
        "instance 0: 2 versions",
        "moments of AdamW",
        "trainer states",
        "GiB free",
    ):
        assert word in called.out, word
    assert "H800" not in called.out, "what only the simulator reads does not apply"
    assert not (project / "runs").exists()


SKIPPING = ("--set", "data.max_prompt_tokens=2", "--set", "data.overlong_prompts=skip")


def with_long_prompts(project: Path) -> None:
    """Three of ten prompts, and one of four held-out ones, have more than two tokens."""
    for name, number, num_long in (("rows", 10, 3), ("held_out", 4, 1)):
        rows = [{"prompt": "long:" if i < num_long else "s:", "solution": "x"} for i in range(number)]
        (project / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_prompts_that_are_too_long_are_left_out_of_the_plan_and_counted(dora: Dora, project: Path) -> None:
    with_long_prompts(project)
    sets = (*SKIPPING, "--set", "data.held_out.name=held_out.jsonl", "--set", "evaluation.every=1")
    plan = json.loads(dora("train", "recipe.yaml", "--dry-run", "--json", *sets).out)
    assert (plan["rows"], plan["held_out_rows"]) == (7, 3)
    assert (plan["overlong_rows"], plan["overlong_held_out_rows"]) == (3, 1)
    assert plan["recipe"]["task"]["rows"] == 7
    shown = dora("train", "recipe.yaml", "--dry-run", *sets).out
    assert "7 to train on, 3 held out" in shown
    assert "3 of 10 prompts are longer than 2 tokens and were left out" in shown
    assert "1 of 4 held-out prompts is longer than 2 tokens and was left out" in shown


def test_held_out_prompts_that_are_all_too_long_are_an_error_before_the_run(
    dora: Dora, project: Path
) -> None:
    with_long_prompts(project)
    (project / "held_out.jsonl").write_text('{"prompt": "long:", "solution": "x"}\n')
    sets = (*SKIPPING, "--set", "data.held_out.name=held_out.jsonl")
    check(dora("train", "recipe.yaml", *sets), "1 of 1 prompts", "max_prompt_tokens")


def test_a_start_says_who_runs_where_by_which_schedule_and_what_is_left_out(
    dora: Dora, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_long_prompts(project)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise UserError("no further", hint="this is a test")

    monkeypatch.setattr(work, "run_live", refuse)
    called = dora("train", "recipe.yaml", *SKIPPING, "--set", "schedule=sync", "--set", "trackers=[]")
    lines = called.err.splitlines()
    assert lines[0].startswith("run directory: ")
    assert lines[1].startswith("devices: 1 instance on cpu with ")
    assert "trainer on cpu with " in lines[1]
    assert lines[2] == "schedule: sync with S = 0, 2 steps of 2 groups of 2"
    assert lines[3] == "3 of 10 prompts are longer than 2 tokens and were left out"
    assert lines[4] == "error: no further"


def test_a_run_without_tensorboard_says_where_its_metrics_go(
    dora: Dora, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise UserError("no further", hint="this is a test")

    monkeypatch.setattr(work, "run_live", refuse)
    line = "TensorBoard is not installed: metrics go to metrics.jsonl alone"
    assert line not in dora("train", "recipe.yaml").err
    monkeypatch.setattr(work, "find_spec", lambda name: None)
    assert line in dora("train", "recipe.yaml").err
    assert line not in dora("train", "recipe.yaml", "--set", "run.trackers=[]").err


def test_a_dry_run_as_json_adds_up(dora: Dora, project: Path) -> None:
    plan = json.loads(dora("train", "recipe.yaml", "--dry-run", "--json").out)
    parameters = plan["parameters"]
    sizes = {entry["what"]: entry["num_bytes"] for entry in plan["memory"]}
    assert sizes["trainer: master weights"] == 4 * parameters
    assert sizes["trainer: moments of AdamW"] == 8 * parameters
    assert sum(sizes.values()) < plan["memory_limits"]["cpu"] == int(0.9 * 8 * 2**30)
    assert plan["disk_bytes"] == sum(entry["num_bytes"] for entry in plan["disk"])
    assert plan["recipe"]["task"]["rows"] == plan["rows"] == 4
    assert plan["run_directory"].endswith("runs/recipe-1")


def test_every_trajectory_and_every_token_is_counted_on_the_disk(project: Path) -> None:
    def sizes(*sets: str) -> dict[str, int]:
        plan = planner.RunPlanner(resolve_recipe("recipe.yaml", sets), "runs/recipe-1").plan()
        return {entry.what: entry.num_bytes for entry in plan.disk}

    short, long, wordy = sizes("steps=10"), sizes("steps=1010"), sizes("steps=10", "max_new_tokens=508")
    # What real runs left behind, of a trajectory and of a token.
    assert long["event log"] - short["event log"] > 1000 * 4 * 500
    assert long["journal"] - short["journal"] > 1000 * 4 * 480
    assert wordy["journal"] - short["journal"] > 10 * 4 * 500 * 10
    assert long["records"] - short["records"] > 1000 * 6_200


def test_a_disk_that_may_be_too_small_is_told_in_units_that_fit(
    dora: Dora, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "free_disk_bytes", lambda path: 3_000_000)
    monkeypatch.setattr(work, "run_live", raises(UserError("it would run now", hint="not here")))
    called = dora("train", "recipe.yaml")
    assert "MiB, and 2.9 MiB are free" in called.err


def raises(error: Exception) -> Callable[..., Any]:
    def raising(*_: object, **options: object) -> Any:
        raise error

    return raising


def test_a_dry_run_counts_every_rank_of_the_trainer(dora: Dora, project: Path) -> None:
    sets = ("--set", "devices.trainer_ranks=2")
    shown = dora("train", "recipe.yaml", "--dry-run", *sets).out
    assert "trainer_ranks: 2" in shown
    assert "trainer as 2 ranks on cpu, each with" in shown
    plan = json.loads(dora("train", "recipe.yaml", "--dry-run", "--json", *sets).out)
    assert plan["devices"]["trainer_ranks"] == plan["processes"]["trainer rank"] == 2
    sizes = {entry["what"]: entry["num_bytes"] for entry in plan["memory"]}
    for rank in range(2):
        assert sizes[f"trainer rank {rank}: moments of AdamW"] == 8 * -(-plan["parameters"] // 2)
    assert "trainer rank 0: last published version" in sizes
    assert "trainer rank 1: last published version" not in sizes


def planned_on(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, sets: tuple[str, ...] = ()) -> RunPlan:
    """The recipe on a machine with these."""
    monkeypatch.setattr(planner, "gpus", lambda: list(gpus))
    recipe = resolve_recipe("recipe.yaml", ["devices.kind=cuda", "devices.memory_gib=null", *sets])
    return planner.RunPlanner(recipe, "runs/recipe-1").plan()


def test_several_gpus_are_divided_and_those_that_do_both_pause(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Gpu(name="NVIDIA H200", memory_bytes=140 * 2**30)
    sets = ("batch.groups=512", "response.max_new_tokens=400")
    plan = planned_on(monkeypatch, large, large, sets=sets)
    devices = plan.setup.devices
    assert (devices.trainer_ranks, devices.instances) == (1, 2)
    assert [devices.pauses(number) for number in range(2)] == [False, True]
    assert plan.setup.engine.limits.num_host_blocks > 0, "requests of the one that pauses move with their KV"
    assert {place.name for place in plan.places} == {"cuda:0", "cuda:1", "host"}
    trained = {entry.place for entry in plan.memory if entry.what.startswith("trainer")}
    assert trained == {"cuda:1", "host"}
    console = Console(record=True, width=200)
    show_plan(console, plan)
    assert "2 instances on cuda:0, cuda:1" in (shown := console.export_text())
    assert "trainer on cuda:1" in shown
    assert "instance 1 pauses while it trains" in shown


def test_a_gpu_that_others_use_has_only_what_is_free(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 40 * 2**30
    plan = planned_on(monkeypatch, Gpu(name="some", memory_bytes=size, free_bytes=size // 2))
    assert plan.places[0].num_bytes == int(0.9 * size // 2)
    for free_bytes, words in ((2**20, "on cuda:0, which has 0.0 GiB to use"), (2**26, "GiB are left for it")):
        with pytest.raises(ConfigError, match=f"{words}, as others use (39.9|40.0) of the 40.0 GiB there"):
            planned_on(monkeypatch, Gpu(name="some", memory_bytes=size, free_bytes=free_bytes))


def test_a_machine_that_others_use_has_only_what_is_free(
    project: Path, dora: Dora, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "memory_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(planner, "free_memory_bytes", lambda: 2**27)
    free = ("--set", "devices.memory_gib=null")
    check(dora("train", "recipe.yaml", *free), "as others use 63.9 of the 64.0 GiB there", "smaller model")
    assert dora("train", "recipe.yaml", "--dry-run").exit_code == 0, "what is asked for is taken at its word"


def test_beside_gpus_the_host_holds_processes_and_a_copy_of_a_checkpoint(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(name="some", memory_bytes=40 * 2**30)
    plan = planned_on(monkeypatch, gpu, sets=("trainer.serving_dtype=bfloat16",))
    host = {entry.what: entry.num_bytes for entry in plan.memory if entry.place == "host"}
    assert host["trainer: checkpoint put together"] == 14 * plan.num_parameters
    assert "2 processes with torch" in host
    monkeypatch.setattr(planner, "free_memory_bytes", lambda: 2**20)
    with pytest.raises(
        ConfigError, match=r"of the host's memory, .* for checkpoints; 0.0 GiB are to be had"
    ) as e:
        planned_on(monkeypatch, gpu)
    assert "trainer.lora" in str(e.value.hint)


def test_requests_on_their_way_take_no_more_of_the_host_than_is_free(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [Gpu(name="some", memory_bytes=40 * 2**30)] * 2
    sets = (
        "devices.trainer_ranks=1",
        "devices.instances=2",
        "cluster.slots=512",
        "batch.groups=512",
        "response.max_new_tokens=400",
    )

    def host_blocks(free_bytes: int) -> int:
        monkeypatch.setattr(planner, "free_memory_bytes", lambda: free_bytes)
        return planned_on(monkeypatch, *gpus, sets=sets).setup.engine.limits.num_host_blocks

    wanted = host_blocks(2**40)
    plan = planned_on(monkeypatch, *gpus, sets=sets)
    used = plan.used_bytes("host") - sum(e.num_bytes for e in plan.memory if e.what.endswith("on its way"))
    assert 0 < host_blocks(int((used + 2**22) / 0.9)) < wanted


@pytest.mark.parametrize(
    "sets",
    [("cluster.slots=64",), ("cluster.slots=64", "response.max_new_tokens=100"), ("engine.block_size=16",)],
)
@pytest.mark.parametrize("num_gpus", [0, 1])
def test_every_slot_can_be_used_by_the_longest_sequence(
    project: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], num_gpus: int
) -> None:
    """By the engine's count, which is of whole blocks, and by control's rule for one more request."""
    gpus = [Gpu(name="some", memory_bytes=40 * 2**30)] * num_gpus
    kind = ("batch.groups=64",) if gpus else ("batch.groups=64", "devices.kind=cpu")
    plan = planned_on(monkeypatch, *gpus, sets=(*kind, *sets))
    limits = plan.setup.engine.limits
    sequence = limits.blocks_for(limits.max_positions) * limits.block_size
    others = limits.max_running - 1
    spec = InstanceSpec(slots=limits.max_running, kv_tokens=limits.num_blocks * limits.block_size)
    instance = Instance(instance=0, spec=spec, version=0, now=0.0)
    instance.num_running = others
    instance.report(0.0, 0.0, others * sequence)
    assert Fleet(watermark=plan.setup.recipe.control.kv_watermark).has_room(instance, sequence)
    [kv] = [entry.num_bytes for entry in plan.memory if "KV of" in entry.what]
    tokens = (limits.num_blocks + 1) * limits.block_size
    assert kv == tokens * PagedCache.cell_bytes(
        read_config(Path(plan.setup.model_directory) / "config.json"), torch.float32
    )


def test_kv_that_is_asked_for_is_what_there_is(project: Path) -> None:
    recipe = resolve_recipe("recipe.yaml", ["engine.kv_tokens=100"])
    assert planner.RunPlanner(recipe, "runs/recipe-1").plan().setup.engine.limits.num_blocks == 4


def test_how_long_responses_usually_are_is_the_recipes_to_say(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Recipe] = []
    ranked = planner.placements

    def watched(recipe: Recipe, *others: Any) -> Any:
        seen.append(recipe)
        return ranked(recipe, *others)

    monkeypatch.setattr(planner, "placements", watched)
    gpu = Gpu(name="NVIDIA H200", memory_bytes=140 * 2**30)
    plan = planned_on(monkeypatch, gpu, gpu, sets=("task.lengths={kind: lognormal, median_tokens: 5}",))
    for recipe in (plan.setup.recipe, *seen):
        lengths = recipe.task.lengths
        assert isinstance(lengths, Lognormal)
        assert (lengths.median_tokens, lengths.min_tokens, lengths.max_tokens) == (5, 1, 8)


def test_gpus_without_room_for_both_do_one_thing_each(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ("batch.groups=512", "response.max_new_tokens=400")
    both = planned_on(monkeypatch, *[Gpu(name="NVIDIA H200", memory_bytes=2**31)] * 2, sets=sets)
    assert both.setup.devices.is_elastic
    needed = sum(entry.num_bytes for entry in both.memory if entry.what.startswith("trainer"))
    for size in range(2**31, needed, -(2**26)):
        alone = planned_on(monkeypatch, *[Gpu(name="NVIDIA H200", memory_bytes=size)] * 2, sets=sets)
        if not alone.setup.devices.is_elastic:
            assert (alone.setup.devices.instances, alone.setup.devices.trainer_ranks) == (1, 1)
            return
    pytest.fail("both were on one GPU to the end")


def test_low_rank_training_needs_less_for_its_optimizer(dora: Dora, project: Path) -> None:
    def moments(*sets: str) -> int:
        plan = json.loads(dora("train", "recipe.yaml", "--dry-run", "--json", *sets).out)
        return next(e["num_bytes"] for e in plan["memory"] if e["what"] == "trainer: moments of AdamW")

    assert moments("--set", "trainer.lora.rank=2") < moments() / 4


def test_a_dry_run_of_episodes_shows_what_plays_them(dora: Dora, project: Path) -> None:
    called = dora("train", "tools", "--dry-run", "--set", "episode.processes=3")
    assert (called.exit_code, called.err) == (0, "")
    assert "1 orchestrator, 1 instance, 1 trainer, 3 episode workers" in called.out
    assert "dora_rl.envs.tasks.tools:calculator" in called.out


def test_the_shipped_recipes_are_listed(dora: Dora) -> None:
    lines = dora("train", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "arithmetic",
        "bfcl",
        "countdown",
        "demo",
        "gsm8k",
        "smollm2-chain-sum",
        "textworld",
        "tools",
    ]


def test_the_demo_resolves_on_any_machine(dora: Dora, project: Path) -> None:
    plan = json.loads(dora("train", "demo", "--dry-run", "--json").out)
    assert plan["recipe"]["model"] == "tiny"
    assert (Path(plan["model"]) / "model.safetensors").is_file()
    again = json.loads(dora("train", "demo", "--dry-run", "--json").out)
    assert again["model"] == plan["model"], "a built-in model is made once"


def test_what_only_the_simulator_reads_is_said_to_change_nothing(dora: Dora, project: Path) -> None:
    called = dora("train", "recipe.yaml", "--dry-run", "--set", "gpus=2")
    assert called.exit_code == 0
    [warning] = called.err.splitlines()
    assert warning.startswith("warning: cluster.gpus is for `dora simulate`")
    assert warning.endswith("set by devices.instances and devices.trainer_ranks")


def test_two_runs_of_a_recipe_plan_for_directories_of_their_own(
    dora: Dora, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is started while the first plans; neither leaves anything where it does not begin."""
    asked: list[str] = []

    def planning_meets_another(recipe: Recipe, directory: str, **options: object) -> PreparedHere:
        asked.append(Path(directory).name)
        if len(asked) < 2:
            assert dora("train", "recipe.yaml").exit_code == 2
        raise UserError("no plan", hint="none")

    monkeypatch.setattr(work, "Preparation", planning_meets_another)
    assert dora("train", "recipe.yaml").exit_code == 2
    assert asked == ["recipe-1", "recipe-2"]
    assert not (project / "runs").exists()


# --- and then it runs ---


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_trains_reports_and_goes_no_further(project: Path) -> None:
    # A process of its own: the run starts others, and handles signals.
    called = subprocess.run(
        [sys.executable, "-c", "from dora_rl.cli.main import main; main()", "train", "recipe.yaml", "--json"],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert called.returncode == 0, called.stderr
    summary = json.loads(called.stdout)
    root = project / "runs" / "recipe-1"
    assert summary["is_complete"]
    assert summary["steps"] == 2
    assert summary["trained_trajectories"] == 8
    plan = planner.RunPlanner(resolve_recipe("recipe.yaml"), "runs/recipe-2").plan()
    assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) < plan.disk_bytes
    lines = [line for line in called.stderr.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    assert "Reward" in (root / "report.html").read_text()
    groups = [json.loads(line) for line in (root / "completions.jsonl").read_text().splitlines()]
    assert {group["step"] for group in groups} == {1, 2}
    for group in groups:
        for member in group["completions"]:
            assert member["values"] == {"length": member["reward"]}
            assert member["is_truncated"] or member["reward"] == len(member["text"])
