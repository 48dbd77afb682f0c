"""`dora report`, `dora init` and `dora doctor`, as a shell sees them."""

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from dora_rl.cli import doctor
from dora_rl.core.history import encode_event
from dora_rl.core.inputs import Fault, Replayed, RewardFault, Scored
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.envs.data.rows import Row
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.run.prompt_table import PromptTable

Dora = Callable[..., Any]

SMALL = [
    "--set", "batch.groups=8", "--set", "group_size=4", "--set", "gpus=12", "--set", "rollout_gpus=4",
    "--set", "tensor_parallel=1", "--set", "slots=16", "--set", "rows=100", "--steps", "4",
]  # fmt: skip


def test_a_report_is_printed_and_written(dora: Dora, tmp_path: Path) -> None:
    dora("simulate", *SMALL, "--out", tmp_path / "run")
    called = dora("report", tmp_path / "run")
    assert (called.exit_code, called.err) == (0, "")
    for word in ("finished", "4 of 4", "staleness", "bottleneck", "report.html"):
        assert word in called.out
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_the_pictures_of_a_report_are_written_as_files_where_asked(dora: Dora, tmp_path: Path) -> None:
    dora("simulate", *SMALL, "--out", tmp_path / "run")
    called = dora("report", tmp_path / "run", "--pictures", tmp_path / "pictures")
    assert called.exit_code == 0, called.err
    found = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert {"reward.png", "where_the_seconds_went.png"} <= set(found)
    assert f"wrote {tmp_path / 'pictures/reward.png'}" in called.out
    (tmp_path / "file").touch()
    called = dora("report", tmp_path / "run", "--pictures", tmp_path / "file")
    assert (called.exit_code, "cannot write" in called.err) == (2, True)


def test_a_report_as_json_is_one_object(dora: Dora, tmp_path: Path) -> None:
    dora("simulate", *SMALL, "--out", tmp_path / "run")
    fields = json.loads(dora("report", tmp_path / "run", "--json", "--out", tmp_path / "page.html").out)
    assert (fields["steps"], len(fields["step_facts"]), fields["page"]) == (4, 4, str(tmp_path / "page.html"))
    assert [facts["step"] for facts in fields["step_facts"]] == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "report.html").exists()


def test_where_the_page_cannot_be_written_the_summary_is_still_printed(dora: Dora, tmp_path: Path) -> None:
    dora("simulate", *SMALL, "--out", tmp_path / "run")
    nowhere = tmp_path / "none" / "page.html"
    called = dora("report", tmp_path / "run", "--out", nowhere)
    assert called.exit_code == 2
    assert "bottleneck" in called.out
    assert "wrote" not in called.out
    assert called.err.splitlines()[0] == f"error: cannot write {nowhere}: No such file or directory"
    called = dora("report", tmp_path / "run", "--out", nowhere, "--json")
    assert called.exit_code == 2
    assert json.loads(called.out)["page"] is None


def test_a_report_names_what_failed_who_died_and_what_was_trained_again(dora: Dora, tmp_path: Path) -> None:
    dora("simulate", *SMALL, "--out", tmp_path / "run")
    events = tmp_path / "run" / "events.jsonl"
    seq = json.loads(events.read_text().splitlines()[-1])["seq"]
    fault = RewardFault(function="f", reason="raised", detail="KeyError: [0]")
    more = [
        Scored(at=9e9, trajectory=0, reward=None, failures=(fault,)),
        Fault(at=9e9, worker="the trainer", reason="killed by SIGKILL"),
        Replayed(at=9e9, batch=0, num_different=12),
    ]
    with events.open("ab") as log:
        log.writelines(encode_event(seq + 1 + number, event, []) for number, event in enumerate(more))
    said = dora("report", tmp_path / "run").out
    for words in (
        "1 by reward f, raised, the first time KeyError: [0]",
        "the trainer: 1 time, the last time killed by SIGKILL",
        "1 step after restarts; 12 values differ from what was published",
    ):
        assert words in said
    fields = json.loads(dora("report", tmp_path / "run", "--json").out)
    assert fields["reward_failures"][0]["count"] == 1
    assert fields["worker_deaths"] == [
        {"worker": "the trainer", "count": 1, "last_reason": "killed by SIGKILL"}
    ]
    assert (fields["num_replays"], fields["num_different"]) == (1, 12)


def test_what_is_no_run_is_said_to_be_none(dora: Dora, tmp_path: Path) -> None:
    called = dora("report", tmp_path)
    assert called.exit_code == 2
    assert called.err.splitlines()[0] == f"error: {tmp_path} is no run directory"
    assert called.err.splitlines()[1].startswith("hint: ")


def test_init_writes_a_recipe_that_resolves_and_a_reward_that_scores(dora: Dora, tmp_path: Path) -> None:
    called = dora("init", tmp_path / "new")
    assert called.exit_code == 0
    recipe = resolve_recipe(str(tmp_path / "new" / "recipe.yaml"))
    assert recipe.data is not None
    assert recipe.data.train.name == str(tmp_path / "new" / "rows.jsonl")
    namespace: dict[str, Any] = {}
    exec((tmp_path / "new" / "rewards.py").read_text(), namespace)
    given, wanted = ["fed", "fedc", "x", "fe"], ["fed"] * 4
    assert namespace["right"](completions=given, solution=wanted) == [1, 0, 0, 0]
    assert namespace["close"](completions=given, solution=wanted) == pytest.approx([1, 0.75, 0, 2 / 3])


def test_the_starter_holds_out_what_it_never_trains_on(dora: Dora, tmp_path: Path) -> None:
    dora("init", tmp_path / "new")
    train, held_out = (
        [json.loads(line) for line in (tmp_path / "new" / name).read_text().splitlines()]
        for name in ("rows.jsonl", "held_out.jsonl")
    )
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}
    assert len(held_out) > 40
    for row in (*train, *held_out):
        first, last = row["prompt"][0], row["prompt"][2]
        assert row["solution"] == "".join(map(chr, range(ord(first), ord(last) - 1, -1)))
    right = sum(row["demonstration"] == row["solution"] for row in train) / len(train)
    assert 0.1 < right < 0.5, "the teacher leaves something to learn"


def test_init_writes_an_agent_if_that_is_wanted(dora: Dora, tmp_path: Path) -> None:
    called = dora("init", "--agent", tmp_path / "new")
    assert called.exit_code == 0
    recipe = resolve_recipe(str(tmp_path / "new" / "recipe.yaml"))
    assert recipe.episode is not None
    assert recipe.episode.function == f"{tmp_path}/new/episode.py:follow_links"


def test_init_leaves_what_is_there_alone(dora: Dora, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    called = dora("init", tmp_path)
    assert called.exit_code == 2
    assert "exists and is not empty" in called.err


def test_a_machine_that_can_train_is_told_so(dora: Dora) -> None:
    called = dora("doctor")
    assert called.exit_code == 0
    assert "ready to train" in called.out


def test_a_missing_package_is_named_with_its_cure_and_the_exit_code_says_so(
    dora: Dora, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "transformers":
            raise PackageNotFoundError(name)
        return {"torch": "2.9.1"}.get(name, "9.9")

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "gpus", list)
    called = dora("doctor", "--json")
    by_name = {check["name"]: check for check in json.loads(called.out)}
    assert called.exit_code == 1
    assert by_name["transformers"]["state"] == by_name["torch"]["state"] == "missing"
    assert "pip install 'torch>=2.11,<2.14'" in by_name["torch"]["hint"]
    assert by_name["safetensors"]["state"] == "ok"


def checks_by_name(dora: Dora) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(dora("doctor", "--json").out)}


def test_the_doctor_listens_on_loopback_and_says_what_to_fix_where_it_cannot(
    dora: Dora, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checks_by_name(dora)
    assert found["loopback"]["state"] == found["socket pairs"]["state"] == "ok"

    def refused(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(doctor.socket, "create_connection", refused)
    found = checks_by_name(dora)
    assert found["loopback"]["state"] == "note"
    assert "Operation not permitted" in found["loopback"]["text"]
    assert "devices.trainer_ranks" in found["loopback"]["hint"]
    monkeypatch.setattr(doctor.socket, "socketpair", refused)
    called = dora("doctor")
    assert called.exit_code == 1
    assert "missing: socket pairs" in called.out


def test_prompts_that_were_left_out_are_in_the_report(dora: Dora, tmp_path: Path) -> None:
    root = tmp_path / "run"
    dora("simulate", *SMALL, "--out", root)
    prompt = TokenizedPrompt(row=Row(row=0, prompt="x", columns={}), token_ids=(1,))
    table = PromptTable(
        train=(prompt,) * 7, held_out=(prompt,), stop_tokens=(), num_overlong=3, num_overlong_held_out=2
    )
    table.write(root / "prompts.msgpack")
    shown = dora("report", root).out
    assert "3 of 10 prompts are longer than" in shown
    assert "2 of 3 held-out prompts are longer than" in shown
    assert "2 of 3 held-out prompts" in (root / "report.html").read_text()
    fields = json.loads(dora("report", root, "--json").out)
    assert (fields["overlong_prompts"], fields["overlong_held_out_prompts"]) == (3, 2)
