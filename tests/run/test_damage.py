"""Files of a run, damaged one at a time: it opens as it was, or is refused by name and with a way out."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.decisions import Take
from dora_rl.core.errors import DoraError
from dora_rl.core.inputs import Tick
from dora_rl.observe.live import completions
from dora_rl.observe.live.completions import CompletionLog, read_completions
from dora_rl.observe.live.trackers import Tracked, _read
from dora_rl.run.metrics_writer import _reconciled
from dora_rl.run.open_run import OpenRun
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.resume_changes import change_run
from dora_rl.run.run_layout import LiveLayout
from dora_rl.store.errors import RunError
from dora_rl.store.journal_records import FinishedGroup

from .conftest import MakeSetup, written_down
from .damage_campaign import HOW, damage

ROUNDS = 40
DERIVED = ("events.jsonl", "lock")
"""Files that are made again whatever became of them."""


@pytest.fixture
def begun(make_setup: MakeSetup) -> Path:
    setup = make_setup()
    written_down(setup)
    return Path(setup.run_directory)


def opened(root: Path) -> tuple[Any, ...]:
    """What a run that goes on goes on with."""
    change_run(root, {})
    run = OpenRun(root)
    try:
        setup = run.setup
        prompts, events = PromptTable.read(run.layout.prompts), run.layout.events.read_bytes()
        return setup.recipe, setup.engine, prompts, run.journal.num_inputs, events
    finally:
        run.close()


def tried(root: Path) -> tuple[tuple[Any, ...], DoraError | None]:
    """What a run goes on with, or why it does not."""
    try:
        return opened(root), None
    except DoraError as error:
        return (), error


@pytest.mark.parametrize(
    "name",
    [
        "recipe.yaml",
        "setup.json",
        "prompts.msgpack",
        "tokenizer.json",
        "journal.sqlite",
        "events.jsonl",
        "sealed.json",
        "lock",
    ],
)
def test_a_damaged_file_is_made_up_for_or_named(begun: Path, tmp_path: Path, name: str) -> None:
    draw, root, expected = random.Random(name), tmp_path / "damaged", opened(begun)
    for number in range(ROUNDS):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(begun, root)
        damage(root / name, how := HOW[number % len(HOW)], draw)
        found, refused = tried(root)
        if refused is None:
            assert found[1:] == expected[1:], f"{how}: it goes on with something else"
        else:
            assert name in refused.message, f"{how}: {refused.message}"
            assert refused.hint, f"{how}: {refused.message}"
            assert name not in DERIVED


def test_a_lost_recipe_can_be_taken_from_the_set_up(begun: Path) -> None:
    layout = LiveLayout(root=begun)
    before = layout.read_recipe()
    layout.recipe.unlink()
    with pytest.raises(RunError, match=r"recipe\.yaml is missing") as refused:
        change_run(begun, {})
    assert "setup.json" in (refused.value.hint or "")
    layout.recipe.write_text(json.dumps(json.loads(layout.setup.read_text())["recipe"]))
    assert layout.read_recipe() == before
    change_run(begun, {})


def test_a_step_s_metrics_are_those_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    steps: dict[int, Any] = {n: {"at": float(n), "step_time": 1.0, "reward": n / 10} for n in (1, 2, 3)}
    lines = [json.dumps({"step": n, **values}).encode() + b"\n" for n, values in steps.items()]
    evaluation = b'{"step": 2, "at": 2.5, "eval/prompts": 4}\n'
    whole = [{"step": n, **steps[n]} for n in (1, 2)] + [json.loads(evaluation)] + [{"step": 3, **steps[3]}]
    for damaged in (
        [*lines[:2], evaluation, lines[2]],
        [lines[0].replace(b"0.1", b"0.7"), evaluation],
        [lines[1].replace(b"step_time", b"step_tome"), evaluation, b'{"step": 1, "at": "soon"}\n', b"\xff\n"],
        [evaluation, b"[1]\n", b'{"step": 4, "at": 4.0, "step_time": 1.0}\n', lines[2][:-9]],
    ):
        path.write_bytes(b"".join(damaged))
        assert _reconciled(path, 3, steps) == whole
        assert [json.loads(line) for line in path.read_text().splitlines()] == whole


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"step": "three"}', b'{"st'])
def test_what_trackers_had_may_be_lost_and_that_is_said(tmp_path: Path, content: bytes) -> None:
    kept, told = tmp_path / "tracked.json", list[str]()
    assert _read(kept, told.append) == Tracked()
    assert not told
    kept.write_bytes(content)
    assert _read(kept, told.append) == Tracked()
    assert str(kept) in told[0]


class BatchesInMemory:
    """A journal whose batches have one group each, of their own number."""

    def __init__(self) -> None:
        self.kept_batches = {number: (number,) for number in (1, 2, 3)}

    @classmethod
    def open(cls, path: Path) -> "BatchesInMemory":
        return cls()

    def group(self, number: int) -> FinishedGroup:
        return FinishedGroup(group=number, version=0, members=())

    def __enter__(self) -> "BatchesInMemory":
        return self

    def __exit__(self, *why: object) -> None:
        pass


def test_completions_that_a_crash_kept_from_the_file_are_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches 0 to 2 the file has the first, a torn line of the third, and nothing of the second."""
    path = tmp_path / "completions.jsonl"
    monkeypatch.setattr(completions, "Journal", BatchesInMemory)
    first = b'{"step": 1, "group": 0, "version": 0, "prompt": "", "completions": []}\n'
    path.write_bytes(first + first.replace(b"1", b"3", 1)[:40])
    log = CompletionLog(path, journal=tmp_path, num_trajectories=1, decode=lambda: lambda ids, **how: "")
    log.watch(Tick(at=1.0), [])
    log.watch(Tick(at=2.0), [Take(batch=3, groups=(3,), staleness=(0,))])
    log.watch(Tick(at=3.0), [Take(batch=4, groups=(4,), staleness=(0,))])
    lines = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert lines == [1, 2, 3, 4, 5], "each once, also one that was taken as the run went on"
    assert [group.step for group in read_completions(path)] == lines


def test_no_other_file_is_blamed_for_a_recipe_that_the_journal_no_longer_knows(begun: Path) -> None:
    journal = begun / "journal.sqlite"
    content = bytearray(journal.read_bytes())
    value = content.index(key := b"entropy_bonus") + len(key) + 1
    content[value + 3] ^= 0x10
    journal.write_bytes(content)
    with pytest.raises(DoraError, match=r"journal\.sqlite is damaged"):
        change_run(begun, {})
