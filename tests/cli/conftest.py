"""The command line, called in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from dora_rl.cli import main as cli


class Called(NamedTuple):
    exit_code: int
    out: str
    err: str


@pytest.fixture
def dora(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    """`dora("simulate", "--json")` as a shell would see it."""

    def call(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["dora", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            sys.exit(cli.main())
        printed = capsys.readouterr()
        return Called(int(stopped.value.code or 0), printed.out, printed.err)

    return call
