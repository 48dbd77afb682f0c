"""The command line starts at once, and says what went wrong in two lines."""

import subprocess
import sys
import time

import pytest

from dora_rl import __version__
from dora_rl.cli import main as cli
from dora_rl.core.errors import ConfigError, DoraError, install_hint

HELP_AND_LIST_MODULES = """
import sys
from dora_rl.cli.main import app
app(["--help"], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""

INTERRUPTED_COMMAND = """
from dora_rl.cli.main import app, main
@app.command()
def interrupted():
    raise KeyboardInterrupt
main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def dora(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-c", "from dora_rl.cli.entry import main; main()", *arguments)


def test_help_loads_nothing_heavy() -> None:
    loaded = set(run("-c", HELP_AND_LIST_MODULES).stderr.split())
    assert "dora_rl.cli.main" in loaded
    assert not loaded & {"matplotlib", "numpy", "ray", "torch"}


def test_help_is_instant() -> None:
    started_s = time.perf_counter()
    assert dora("--help").returncode == 0
    # Well under a second on an idle machine; the bound leaves room for a busy one.
    assert time.perf_counter() - started_s < 3.0


def test_version_is_the_packages() -> None:
    assert dora("--version").stdout == f"dora {__version__}\n"


def test_a_usage_error_exits_with_two() -> None:
    assert dora("no-such-command").returncode == 2


def test_an_interrupt_exits_with_130() -> None:
    assert run("-c", INTERRUPTED_COMMAND, "interrupted").returncode == 130


@pytest.mark.parametrize(
    ("raised", "exit_code", "text"),
    [
        (ConfigError("bad recipe", hint="fix it"), 2, "error: bad recipe\nhint: fix it\n"),
        (DoraError("an instance died"), 1, "error: an instance died\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            2,
            f"error: this command needs torch, which is not installed\nhint: {install_hint('train')}\n",
        ),
    ],
)
def test_an_error_is_a_sentence_a_hint_and_an_exit_code(
    raised: Exception,
    exit_code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == exit_code
    assert capsys.readouterr().err == text


def test_a_module_missing_through_our_own_fault_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'dora_rl.lost'", name="dora_rl.lost")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_an_interrupt_while_the_command_is_imported_is_no_traceback() -> None:
    code = (
        "import sys; from dora_rl.cli.entry import main\n"
        "class Struck:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Struck()); main()"
    )
    done = run("-c", code, "--help")
    assert (done.returncode, done.stderr) == (130, "")
