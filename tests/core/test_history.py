"""The event log reads back what was written; what a crash tore off is left out, other damage is named."""

from pathlib import Path

import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.errors import UserError
from dora_rl.core.history import Event, History, HistoryWriter
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Batch, Recipe

RECIPE = Recipe(batch=Batch(groups=3, group_size=2), steps=5)
EVENTS: list[Event] = [
    (told.InstanceJoined(at=0.0, instance=0, spec=InstanceSpec(slots=4, kv_tokens=100)), []),
    (
        told.Tick(at=0.1 + 0.2),
        [do.Admit(group=0, version=0, epoch=0, row=7), do.Take(batch=0, groups=(1, 2), staleness=(0, 1))],
    ),
    (told.Scored(at=5.0, trajectory=3, reward=None), [do.Wait(reason="starved")]),
]


def written(path: Path, events: list[Event]) -> Path:
    with HistoryWriter(path, RECIPE) as log:
        for event, decisions in events:
            log.watch(event, decisions)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "deep" / "run.jsonl", EVENTS)


def test_a_history_reads_back_as_it_was_written(path: Path) -> None:
    history = History(path)
    assert history.recipe == RECIPE
    assert list(history) == EVENTS
    assert list(history) == EVENTS, "a history can be read more than once"
    assert history.torn_line is None


def test_what_episodes_do_not_say_is_not_written_and_logs_without_it_are_read(tmp_path: Path) -> None:
    replied = told.EnvironmentReplied(at=1.0, trajectory=0, tokens=5)
    branch = told.EnvironmentReplied(at=2.0, trajectory=0, tokens=0, context=40)
    opened = told.Opened(at=3.0, epoch=0, row=7, tokens=40)
    events: list[Event] = [(replied, []), (branch, []), (opened, [do.Open(epoch=0, row=8)])]
    path = written(tmp_path / "run.jsonl", events)
    assert list(History(path)) == events
    lines = path.read_text().splitlines()[1:]
    assert ["context" in line for line in lines] == [False, True, False, False]
    assert not [line for line in lines if "is_evaluation" in line]


def test_every_line_says_what_and_when(path: Path) -> None:
    _, *lines = path.read_text().splitlines()
    assert all('"at":' in line and ('"input":"' in line) != ('"decision":"' in line) for line in lines)


@pytest.mark.parametrize("records", [told.Input, Decision])
def test_no_record_has_a_field_that_a_line_needs(records: type) -> None:
    reserved = {"seq", "decisions"} | ({"at"} if records is Decision else set())
    assert not [kind for kind in records.__subclasses__() if reserved & set(kind.__struct_fields__)]


@pytest.mark.parametrize("cut", [1, 30])
def test_a_torn_last_line_is_left_out_and_reported(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut].rstrip(b"}"))
    history = History(path)
    assert list(history) == EVENTS[:2]
    assert history.torn_line == 7


def test_an_input_without_all_its_decisions_is_torn_too(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    history = History(path)
    assert list(history) == EVENTS[:1]
    assert history.torn_line == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"batch":0', '"batch":"many"'),
        ('"decision":"Take"', '"decision":"Steal"'),
        ('"seq":1,"at":0.30000000000000004,"decision":"Take"', '"seq":2,"at":0.3,"decision":"Take"'),
        ('"staleness":[0,1]}', '"staleness":[0,1]'),
    ],
)
def test_damage_is_an_error_that_names_its_line(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match="line 5"):
        list(History(path))


@pytest.mark.parametrize("count", ["-1", '"two"', "1", "3"])
def test_a_wrong_count_of_decisions_is_an_error(path: Path, count: str) -> None:
    path.write_text(path.read_text().replace('"decisions":2', f'"decisions":{count}'))
    with pytest.raises(UserError, match=r"line [356]"):
        list(History(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no event log"),
        ("\x00\x01", "is no event log"),
        ('{"a": 1}\n', "is no event log"),
        ('{"history": 99, "recipe": {}}\n', "schema 99"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        History(path)


def test_an_event_log_of_the_first_schema_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(
        '{"history":1,"recipe":{}}\n'
        '{"seq":0,"decisions":1,"input":"EnvironmentFailed","at":1.0,"trajectory":0,"reason":"no room"}\n'
        '{"seq":0,"at":1.0,"decision":"GiveBack","instance":0}\n'
    )
    with pytest.raises(UserError, match="is an event log of schema 1; this version reads 2") as refused:
        History(path)
    assert refused.value.hint == "use the version of dora-rl that wrote it"


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        History(tmp_path / "none.jsonl")


def test_a_place_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        HistoryWriter(tmp_path / "file" / "run.jsonl", RECIPE)
