"""Sandboxes of a process: refused, warm, a tool, a reward, a program with an endpoint."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.tool_schema import tool_schema
from dora_rl.envs.episodes.episode_function import episode_function
from dora_rl.envs.sandbox.box import Box, BoxFailed
from dora_rl.envs.sandbox.limits import BoxLimits
from dora_rl.envs.sandbox.sandbox import Sandbox, _unsuited, check_allowed


@pytest.fixture(scope="module")
def sandbox() -> Any:
    try:
        made = Sandbox()
    except UserError as error:
        pytest.skip(error.message)
    yield made
    made.close()


def _forbidden() -> Box:
    raise BoxFailed("unshare: Operation not permitted")


def test_where_namespaces_are_forbidden_it_is_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match="unshare: Operation not permitted") as refused:
        check_allowed(_forbidden)
    assert "episode.sandbox=none" in str(refused.value.hint)
    assert Sandbox(mode="none", warm=0).execute("print(1)").stdout == "1\n"


def test_where_namespaces_are_really_forbidden_it_is_refused(sandbox: Sandbox) -> None:
    script = "from dora_rl.envs.sandbox.sandbox import Sandbox\nSandbox()"
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" "$@"'
    command = ["unshare", "-Ur", "sh", "-c", forbid, sys.executable, "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    except FileNotFoundError:
        pytest.skip("there is no program unshare")
    assert "the sandbox for code that a model writes cannot be used" in done.stderr
    assert "unshare: No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (("darwin", "arm64", "23.1"), "Linux"),
        (("linux", "riscv64", "6.8"), "riscv64"),
        (("linux", "x86_64", "4.18.0-553.el8"), "5.14"),
        (("linux", "aarch64", "5.15.0-1"), None),
        (("linux", "x86_64", "6.1.0"), None),
    ],
)
def test_a_machine_that_can_have_no_box_is_told_why(
    machine: tuple[str, str, str], reason: str | None
) -> None:
    found = _unsuited(*machine)
    assert found is None if reason is None else reason in str(found)


def test_an_episode_that_takes_a_sandbox_gets_it_and_no_other_does(sandbox: Sandbox) -> None:
    async def codes(chat: Any, row: Any, sandbox: Sandbox) -> None: ...
    async def plain(chat: Any, row: Any, **rest: Any) -> None: ...

    given = episode_function("codes", codes, {}, sandbox="none").arguments("a chat", "a row")
    assert given["sandbox"].run_python("print(7)") == "7"
    assert episode_function("plain", plain, {}).arguments(1, 2) == {"chat": 1, "row": 2}
    with pytest.raises(UserError, match="is what the run gives it"):
        episode_function("codes", codes, {"sandbox": "x"})


def test_it_is_a_tool(sandbox: Sandbox) -> None:
    described = tool_schema(sandbox.run_python)["function"]
    assert described["name"] == "run_python"
    assert described["parameters"]["required"] == ["code"]
    assert sandbox.run_python("print(6 * 7)") == "42"
    assert sandbox.run_python("import sys; sys.exit(3)") == "[exit code 3]"
    raised = sandbox.run_python("def f():\n    raise ValueError('no')\nf()")
    assert raised.splitlines()[-2:] == ["ValueError: no", "[exit code 1]"]
    assert "    raise ValueError('no')" in raised
    assert "interpreter" not in raised
    assert "SyntaxError" in sandbox.run_python("def")


def test_code_is_a_whole_program_with_input_files_and_environment(sandbox: Sandbox) -> None:
    code = """
import os, sys, solution
from dataclasses import dataclass
@dataclass
class Pair: a: int
import pickle; pickle.loads(pickle.dumps(Pair(1)))
print(__name__, sys.stdin.read(), solution.double(4), os.environ['KEY'], open('d/x').read())
"""
    files = {"solution.py": "double = lambda x: 2 * x", "d/x": b"bytes"}
    done = sandbox.execute(code, stdin="in", files=files, environment={"KEY": "k"})
    assert done.stdout == "__main__ in 8 k bytes\n", done


def test_other_limits_are_another_sandbox(sandbox: Sandbox) -> None:
    short = sandbox.limited(wall_s=0.2)
    assert short.run(["sleep", "9"]).why_ended == "wall"
    short.close()
    missing = "/nowhere/at/all"
    with pytest.raises(UserError, match=missing):
        Sandbox(readable=[missing])


def test_a_path_can_be_made_readable_also_behind_a_link(tmp_path: Path, sandbox: Sandbox) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_text("seen")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with Box(BoxLimits(), readable=[str(tmp_path / "link")]) as box:
        assert box.run(["cat", f"{tmp_path}/link/x"]).stdout == "seen"
        assert not box.run(["sh", "-c", f"echo x > {tmp_path}/link/x"]).is_good


def test_a_box_runs_one_program_at_a_time_and_closing_it_ends_that(sandbox: Sandbox) -> None:
    box = sandbox.open()
    found: list[Any] = []
    program = ["sleep", f"73.{os.getpid()}"]
    thread = threading.Thread(target=lambda: found.append(box.run(program)))
    thread.start()
    while subprocess.run(["pgrep", "-f", " ".join(program)], stdout=subprocess.DEVNULL).returncode:
        time.sleep(0.02)
    with pytest.raises(RuntimeError, match="one program at a time"):
        box.run(["true"])
    box.close()
    thread.join(5)
    assert found[0].why_ended == "closed"
    with pytest.raises(BoxFailed, match="closed"):
        box.run(["true"])


def test_a_box_whose_first_process_is_gone_is_an_error_and_not_a_hang(sandbox: Sandbox) -> None:
    with sandbox.open() as box:
        box._process.kill()
        box._process.wait()
        with pytest.raises(BoxFailed):
            box.run(["true"])
        assert not box.is_alive


# --- the way out --------------------------------------------------------------------------------

CLIENT = """
import os, socket, sys
for word in (b'one', b'two'):
    with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as there:
        there.sendall(word); there.shutdown(socket.SHUT_WR)
        print(there.makefile().read(), os.environ['KEY'])
try: socket.create_connection(('127.0.0.1', int(sys.argv[2])))
except OSError as error: print(error)
"""


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    writer.close()


def test_a_program_reaches_its_endpoint_and_nothing_else(sandbox: Sandbox) -> None:
    async def run() -> None:
        servers = [await asyncio.start_server(_echo, "127.0.0.1", 0) for _ in range(2)]
        ports = [each.sockets[0].getsockname()[1] for each in servers]
        argv = [sys.executable, "client.py", *map(str, ports)]
        done = await sandbox.run_with_endpoint(
            argv, port=ports[0], files={"client.py": CLIENT}, environment={"KEY": "k"}
        )
        assert done.stdout.splitlines()[:2] == ["ONE k", "TWO k"], done
        assert "refused" in done.stdout
        for each in servers:
            each.close()

    asyncio.run(run())


FLOOD = """
import socket, sys, time
socket.setdefaulttimeout(5)
held = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(100)]
time.sleep(0.5)
for each in held: each.sendall(b'x'); each.shutdown(socket.SHUT_WR)
print(sum(each.makefile().read() == 'X' for each in held))
"""


def test_a_flood_of_connections_waits_and_takes_no_descriptors_from_others(sandbox: Sandbox) -> None:
    most = 0

    async def run() -> None:
        open_now = 0

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal most, open_now
            open_now += 1
            most = max(most, open_now)
            await _echo(reader, writer)
            open_now -= 1

        server = await asyncio.start_server(count, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        argv = [sys.executable, "flood.py", str(port)]
        done = await sandbox.run_with_endpoint(argv, port=port, files={"flood.py": FLOOD})
        assert done.stdout == "100\n", done
        server.close()

    asyncio.run(run())
    assert 1 < most <= 64


def test_a_program_ends_with_the_coroutine_that_waits_for_it(sandbox: Sandbox) -> None:
    async def run() -> None:
        endless = sandbox.limited(wall_s=None).run_with_endpoint(["sleep", "60"], port=9)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(endless, 0.7)

    begun = time.monotonic()
    asyncio.run(run())  # Which waits for its threads.
    assert time.monotonic() - begun < 10
