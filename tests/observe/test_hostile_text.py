"""What a model, a reward or a directory's name says is shown, and does nothing: in pages and on terminals."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from dora_rl.api.run_handle import Run
from dora_rl.cli.main import _exit_with
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.errors import UserError
from dora_rl.core.history import HistoryWriter
from dora_rl.core.inputs import Input
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Recipe
from dora_rl.core.visible_text import as_html, one_line, visible
from dora_rl.observe.live.completions import CompletedGroup, Completion
from dora_rl.observe.live.notebook import run_html
from dora_rl.observe.live.tracker_kinds import completion_table
from dora_rl.observe.live.view import RunView
from dora_rl.observe.report.page import write_page
from dora_rl.observe.report.run_reader import read_run
from dora_rl.observe.report.text import show
from dora_rl.observe.terminal import say

HOSTILE = "<script>x</script>[/b]\x1b]0;owned\x07\x1b[2J\rover\u202egnp\u200b\u2066\x9b\ud800$\\"
ACTING = {"\x1b", "\x07", "\r", "\u202e", "\u200b", "\u2066", "\x9b", "\ud800"}
SHOWN = r"[/b]\e]0;owned\a\e[2J\rover\u202egnp\u200b\u2066\x9b\ud800$" + "\\"
NAME = "run[red]\x1b[31m<img src=x>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünï and 漢字 🙂\n\tthe next line", "plain, ünï and 漢字 🙂\n\tthe next line"),
        ("\x1b[31m", r"\e[31m"),
        ("a\rb\x00\x7f\x85", r"a\rb\x00\x7f\x85"),
        ("\u202eabc\u2069", r"\u202eabc\u2069"),
        ("a\u200bb\ufeff\u2028", r"a\u200bb\ufeff\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("\u3164", r"\u3164"),
        ("\udc80", r"\udc80"),
    ],
)
def test_what_acts_or_hides_is_written_out_and_the_rest_stays(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_line_stays_one_and_a_page_has_no_tags_of_it() -> None:
    assert one_line("a\n\tb\r") == r"a\n\tb\r"
    assert as_html('<b a="\'">\x1b') == r"&lt;b a=&quot;&#x27;&quot;&gt;\e"


def events() -> Iterator[tuple[Input, list[Decision]]]:
    """A step whose reward function raised what a model wrote."""
    yield told.InstanceJoined(at=0.0, instance=0, spec=InstanceSpec(slots=8, kv_tokens=100)), []
    starts: list[Decision] = [
        do.Start(instance=0, version=0, trajectory=i, group=0, epoch=0, row=0, member=i, attempt=0,
                 prompt_tokens=5)
        for i in range(2)
    ]  # fmt: skip
    yield told.Tick(at=0.0), [do.Admit(group=0, version=0, epoch=0, row=0), *starts]
    fault = told.RewardFault(function="f", reason="raised", detail=f"ValueError: {HOSTILE[:-3]}")
    values = {f"$f{NAME}": 0.5, "_g": 1.0}
    yield told.Scored(at=1.0, trajectory=0, reward=None, failures=(fault,), values=values), []
    yield told.Scored(at=1.0, trajectory=1, reward=1.0, values=values), []
    yield told.Fault(at=1.5, worker="instance 0", reason=f"died of {HOSTILE[:-3]}", is_restarted=True), []
    yield told.Tick(at=2.0), [do.Take(batch=0, groups=(0,), staleness=(0,))]
    yield told.Published(at=3.0, version=1, train_s=1.0), []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / NAME
    place.mkdir()
    with HistoryWriter(place / "events.jsonl", Recipe(steps=1)) as log:
        for event, decisions in events():
            log.watch(event, decisions)
    text = HOSTILE.replace("\ud800", "")
    member = {"text": text, "reward": 0.2, "values": {NAME: 0.2}, "num_tokens": 4, "is_truncated": True}
    group = {"step": 1, "group": 3, "version": 0, "prompt": text, "completions": [member]}
    (place / "completions.jsonl").write_text(json.dumps(group) + "\n")
    return place


def is_harmless(text: str) -> bool:
    return not ACTING & set(text)


def test_the_page_of_a_report_shows_it_and_has_no_tag_of_it(root: Path) -> None:
    page = write_page(read_run(root), root / "report.html").read_text()
    assert is_harmless(page)
    assert "<script>x" not in page
    assert "<img" not in page
    assert page.count(r"[/b]\e]0;owned\a\e[2J\rover\u202egnp") >= 4, "prompt, completion, failure and death"
    assert r"run[red]\e[31m&lt;img" in page


def test_the_terminal_shows_it_in_report_lines_and_remarks(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(Console(width=400), read_run(root))
    view = RunView(NAME, 1, say)
    for event, decisions in events():
        view.watch(event, decisions)
    say(HOSTILE)
    written = capsys.readouterr()
    assert is_harmless(written.out)
    assert is_harmless(written.err)
    assert r"run[red]\e[31m<img src=x>" in written.out
    assert written.out.count(r"[/b]\e]0;owned\a") == 3, "failure, death and warning"
    assert written.err.count(r"[/b]\e]0;owned\a") == 4
    assert SHOWN in written.err


def test_the_notebook_shows_it_and_has_no_tag_of_it(root: Path) -> None:
    view = RunView(NAME, 1, None)
    for event, decisions in events():
        view.watch(event, decisions)
    for drawn in (run_html(view), Run(root)._repr_html_(), Run(root / NAME)._repr_html_()):
        assert is_harmless(drawn)
        assert "<img" not in drawn
        assert "<script" not in drawn
        assert r"run[red]\e[31m&lt;img" in drawn


def test_an_error_and_a_tracker_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _exit_with(UserError(HOSTILE, hint=HOSTILE))
    assert capsys.readouterr().err == f"error: <script>x</script>{SHOWN}\nhint: <script>x</script>{SHOWN}\n"
    member = Completion(text=HOSTILE, reward=1.0, values={"f": 1.0}, num_tokens=3, is_truncated=False)
    group = CompletedGroup(step=1, group=0, version=0, prompt=HOSTILE, completions=(member,))
    _, ((_, _, _, prompt, text, *_),) = completion_table([group])
    assert is_harmless(prompt + text)
