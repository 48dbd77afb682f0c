"""A run that other control code began goes on if that changes nothing; else it is said whose code it was."""

import json
import shutil
from pathlib import Path

import pytest

from dora_rl.control import fingerprint
from dora_rl.control.fingerprint import control_code
from dora_rl.core.decisions import Finish
from dora_rl.core.errors import DoraError
from dora_rl.core.inputs import Tick
from dora_rl.run.open_run import OpenRun
from dora_rl.run.resume_changes import change_run
from dora_rl.run.run_layout import LiveLayout

from .conftest import MakeSetup, written_down

PRESENT = control_code()


@pytest.fixture
def begun(make_setup: MakeSetup) -> Path:
    setup = make_setup()
    written_down(setup)
    return Path(setup.run_directory)


def codes(root: Path) -> list[str]:
    found: list[str] = json.loads(LiveLayout(root=root).setup.read_text())["control_codes"]
    return found


def led_by(root: Path, *names: str) -> None:
    """Let the run have been led by other code."""
    path = LiveLayout(root=root).setup
    path.write_text(json.dumps({**json.loads(path.read_text()), "control_codes": names}))


def test_the_code_is_named_when_a_run_begins_and_when_other_code_takes_over(begun: Path) -> None:
    assert codes(begun) == []
    for _ in range(2):
        OpenRun(begun).close()
        assert codes(begun) == [control_code()]
    led_by(begun, "0.0.9-abc")
    OpenRun(begun).close()
    assert codes(begun) == ["0.0.9-abc", control_code()]
    change_run(begun, {"checkpoints.every": 7})
    assert codes(begun) == ["0.0.9-abc", control_code()], "a change of the recipe keeps them"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("0.0.9-abc",), "led by dora-rl 0.0.9-abc, and this is"),
        ((), "led by an earlier dora-rl"),
        (("0.0.9-abc", control_code()), "though its code is the same"),
    ],
)
def test_a_decision_that_comes_out_otherwise_names_both_codes_and_a_way_out(
    begun: Path, names: tuple[str, ...], said: str
) -> None:
    run = OpenRun(begun)
    run.journal.append([(Tick(at=1.0), [Finish()])])
    run.close()
    led_by(begun, *names)
    with pytest.raises(DoraError, match=said) as refused:
        OpenRun(begun)
    assert control_code() in refused.value.message
    assert "event 0" in refused.value.message
    assert "Finish then" in refused.value.message
    assert "--set model=CHECKPOINT" in (refused.value.hint or "")
    assert codes(begun) == list(names), "who cannot lead a run does not sign for it"


def test_another_line_in_control_is_another_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "control"
    shutil.copytree(Path(fingerprint.__file__).parent, copy)
    monkeypatch.setattr(fingerprint, "files", lambda package: copy)
    try:
        control_code.cache_clear()
        before = control_code()
        control_code.cache_clear()
        (copy / "pace.py").write_text("# other")
        assert before == PRESENT != control_code()
    finally:
        monkeypatch.undo()
        control_code.cache_clear()
