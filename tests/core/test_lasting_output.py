"""Output that cannot be written is lost, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from dora_rl.core import lasting_output as output
from dora_rl.core.errors import DoraError
from dora_rl.core.lasting_output import lasting, lasting_output, needed_output, note_losses

FULL = Path("/dev/full")

_PROGRAM = """
import sys, typer
from rich.console import Console
from dora_rl.core.lasting_output import lasting_output, note_losses
from dora_rl.observe.terminal import say
with lasting_output():
    for _ in range(2000):
        print("a result", flush=True)
        say("a remark")
        typer.echo(b'{"as": "bytes"}')
        Console().print("a table")
from pathlib import Path
note_losses(Path(sys.argv[1]))
note_losses(Path(sys.argv[1]))
sys.exit(7)
"""


def exit_code(log: Path, *, is_full: bool) -> int:
    """Of a program that prints what nobody takes."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe, FULL.open("wb") as full:
        nowhere = full if is_full else pipe
        command = [sys.executable, "-c", _PROGRAM, str(log)]
        return subprocess.run(command, stdout=nowhere, stderr=nowhere, check=False, timeout=60).returncode


@pytest.mark.parametrize("is_full", [False, True])
def test_a_program_whose_output_nobody_takes_ends_as_it_would_have(tmp_path: Path, is_full: bool) -> None:
    log = tmp_path / "log"
    assert exit_code(log, is_full=is_full) == 7
    said = f"cannot be written ({'No space left on device' if is_full else 'Broken pipe'}): what is printed"
    out, err = (line.split(maxsplit=2)[2] for line in log.read_text().splitlines())
    assert out == f"<stdout> {said} there is lost"
    assert err == f"<stderr> {said} there is lost"


def test_what_can_be_written_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = sys.stdout, sys.stderr
    with lasting_output():
        print("said")
        typer.echo("told", err=True)
        assert lasting(sys.stdout) is sys.stdout
        assert sys.stdout.encoding == before[0].encoding
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("said\n", "told\n")
    note_losses(tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_stream_that_was_closed_is_lost_too_and_a_mistake_is_still_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_losses", {})
    monkeypatch.setattr(output, "_noted", set())
    file = (tmp_path / "out").open("w", encoding="ascii")
    with pytest.raises(UnicodeEncodeError):
        lasting(file).write("\u2713")
    file.close()
    lasting(file).write("late")
    lasting(file).flush()
    note_losses(tmp_path / "log")
    assert "I/O operation on closed file" in (tmp_path / "log").read_text()


def test_a_result_that_cannot_be_printed_is_an_error_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def held_back() -> NoReturn:
        sys.stdout.write("the end of it")
        sys.exit(0)

    def goes_on_regardless() -> None:
        with lasting_output():
            typer.echo("lost")

    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(DoraError, match="cannot be written: No space left on device"), needed_output():
            typer.echo("a result")
        with pytest.raises(DoraError, match="cannot be written"), needed_output():
            held_back()
        with needed_output():
            goes_on_regardless()
        assert sys.stdout is full


def test_an_error_of_a_file_and_a_reader_that_has_enough_are_left_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), needed_output():
        (tmp_path / "none").read_text()
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError), needed_output():
            print("to nobody", flush=True)
        output._give_up_unwritten(pipe)
