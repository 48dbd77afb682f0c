"""The screen fits its terminal: no line is too long, no header is cut, no row wraps, nothing acts."""

from io import StringIO

import pytest
from rich.console import Console

from dora_rl.core import inputs as told
from dora_rl.observe.live.event_facts import EvaluationFacts, RunState, StepFacts
from dora_rl.observe.live.screen import RunScreen, curve
from dora_rl.observe.live.view import RunView

SIZES = [(60, 24), (80, 24), (100, 30), (140, 50)]
HEADERS = ("step", "reward", "no variance", "tokens", "cut", "staleness", "tokens/s", "step time", "starved",
           "window")  # fmt: skip
HOSTILE = "[/b] \x1b[2J\x07 \r over \u202e[red]"


def screen(
    *, num_instances: int = 2, warnings: int = 1, title: str = "/models/a/long/way/tiny, demo-1"
) -> RunScreen:
    steps = [
        StepFacts(
            step=number, published_at=60.0 * number, step_s=3905.0, train_s=40.0, starved_s=3905.0,
            window_s=199.0, generated_tokens=10_000_000, reward=number / 40, reward_std=0.1,
            zero_variance_share=1.0,
            mean_tokens=12345.0, max_tokens=30000, truncated_share=1.0, staleness_mean=1.25, staleness_max=12,
            num_trajectories=32, values={"right_letters_in_order": 0.005, "lower_case": number / 40},
        )
        for number in range(1, 41)
    ]  # fmt: skip
    state = RunState(
        at=7265.0, version=40, trainer="waits for old groups that are due", active_by_version={39: 12, 40: 4},
        running={number: {40: 3} for number in range(num_instances)}, outcomes={HOSTILE: 12}, skipped={},
        failures=[], faults=[], num_replays=0, num_different=0,
    )  # fmt: skip
    held_out = EvaluationFacts(version=40, num_scored=2, reward=0.5, values=steps[-1].values)
    said = ["the rewards of every group were all equal, so there is nothing to learn from"] * warnings
    return RunScreen(
        title=title, state=state, steps=steps, evaluations=[held_out], num_steps=1000, warnings=said,
        remarks=[f"reward right: raised {HOSTILE}"],
    )  # fmt: skip


def drawn(shown: RunScreen, width: int, height: int) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(shown)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(("num_instances", "warnings"), [(1, 0), (2, 1), (16, 3)])
def test_it_fits_whatever_the_size(width: int, height: int, num_instances: int, warnings: int) -> None:
    lines = drawn(screen(num_instances=num_instances, warnings=warnings), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) < height, "a screen as high as the terminal scrolls"
    (head,) = [line for line in lines if " reward " in line and " step " in line]
    rest = head
    for name in sorted(HEADERS, key=len, reverse=True):
        rest = rest.replace(f" {name} ", "  ", 1)
    assert not rest.strip(), f"cut: {rest}"
    rows = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    assert rows == [str(number) for number in range(41 - len(rows), 41)], "the latest steps, a line each"
    assert len(rows) >= 3
    assert lines.index(head) + 2 + len(rows) < len(lines)


@pytest.mark.parametrize(("width", "shown"), [(60, 5), (80, 7), (100, 9), (140, 10)])
def test_columns_are_left_out_by_importance(width: int, shown: int) -> None:
    lines = drawn(screen(), width, 40)
    (head,) = [line for line in lines if " reward " in line and " step " in line]
    by_importance = [
        "step",
        "reward",
        "step time",
        "staleness",
        "tokens",
        "no variance",
        "tokens/s",
        "starved",
    ]
    missing = [name for name in by_importance if f" {name} " not in head]
    assert missing == by_importance[len(by_importance) - len(missing) :]
    assert sum(f" {name} " in head for name in HEADERS) >= shown


def test_what_a_model_or_a_path_says_is_shown_and_does_nothing() -> None:
    text = "\n".join(drawn(screen(title=f"runs/{HOSTILE}"), 140, 50))
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
    assert text.count(r"[/b] \e[2J\a \r over \u202e[red]") == 3, "in the title, the outcomes and the remark"


def test_of_a_long_name_the_end_is_shown() -> None:
    first = drawn(screen(title="/models/" + "x" * 200 + "/tiny, demo-1"), 80, 24)[0]
    assert first.startswith("…")
    assert "/tiny, demo-1  " in first


def test_functions_share_a_scale_so_that_a_flat_one_is_flat() -> None:
    assert curve([0.005, 0.006], scale=(0.0, 1.0)) == "▁▁"
    assert curve([0.005, 0.006]) == "▁█"
    lines = drawn(screen(), 80, 40)
    assert any("right_letters" in line and "▁▁▁▁▁▁" in line and "0.005 to 0.005" in line for line in lines)


def test_what_is_done_before_the_run_goes_when_it_is_over() -> None:
    view = RunView("a run", 4, None)
    view.note("warm start 146/400 ...")
    console = Console(file=StringIO(), width=80, height=24)
    console.print(view)
    view.watch(told.Tick(at=0.0), [])
    again = Console(file=StringIO(), width=80, height=24)
    again.print(view)
    assert isinstance(console.file, StringIO)
    assert isinstance(again.file, StringIO)
    assert "warm start 146/400" in console.file.getvalue()
    assert "staleness" not in console.file.getvalue(), "no header over no steps"
    assert "warm start" not in again.file.getvalue()
    said: list[str] = []
    RunView("a run", 4, said.append).note("warm start 146/400 ...")
    assert said == ["warm start 146/400 ..."], "in a file it is a line"
