"""Attacks on a box. Each is first seen to succeed without one, where that does no harm."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dora_rl.envs.sandbox.box import Box, BoxFailed
from dora_rl.envs.sandbox.limits import BoxLimits

_MIB = 1 << 20
LIMITS = BoxLimits(
    wall_s=8.0,
    cpu_s=4.0,
    memory_bytes=192 * _MIB,
    disk_bytes=4 * _MIB,
    output_bytes=4096,
    processes=12,
    open_files=32,
)


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """A box with small limits, for many programs."""
    try:
        made = Box(LIMITS)
    except BoxFailed as error:
        pytest.skip(f"this system lets no box be made: {error.message}")
    with made:
        yield made


@pytest.fixture(scope="module")
def open_air() -> Iterator[Box]:
    """The same without namespaces, to see that an attack is one."""
    with Box(LIMITS, is_isolated=False) as made:
        yield made


def _won(where: Box, attack: str, **values: object) -> bool:
    """Whether an attack succeeds: it prints `won` then, and says what stopped it otherwise."""
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    tried = "\n".join(f"    {line}" for line in attack.strip().splitlines())
    code = "\n".join(["import ctypes, os, socket", *lines, "try:", tried, "except OSError as e: print(e)"])
    done = where.execute(code)
    assert done.stdout or done.why_ended != "exited", done.stderr
    return "won" in done.stdout


# --- files --------------------------------------------------------------------------------------


def test_a_file_of_the_users_cannot_be_read(box: Box, open_air: Box, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("won")
    attack = "print(open(path).read())"
    assert _won(open_air, attack, path=str(secret))
    assert not _won(box, attack, path=str(secret))


def test_neither_passwords_nor_homes_are_there(box: Box) -> None:
    shown = box.run(["sh", "-c", "ls /etc/shadow /home /root/.ssh /root/.bashrc /var /run /sys /proc/kmsg"])
    assert "/proc/kmsg" in shown.stdout  # The command itself works.
    assert "shadow" not in shown.stdout
    assert shown.stdout.split() == ["/proc/kmsg"]
    assert not box.run(["cat", "/proc/kmsg"]).is_good


def test_nothing_can_be_written_outside(box: Box, open_air: Box, tmp_path: Path) -> None:
    attack = """
for path in paths:
    try: open(path, 'w').write('x'); print('won', path)
    except OSError as error: print(error)
"""
    assert _won(open_air, attack, paths=[str(tmp_path / "mine")])
    system = ["/usr/bin/ls", "/x", "/etc/passwd", "/dev/x", sys.prefix + "/x", "/proc/self/oom_adj"]
    assert not _won(box, attack, paths=[str(tmp_path / "theirs"), *system])
    assert not (tmp_path / "theirs").exists()


def test_files_stay_for_the_next_program_of_a_box_and_no_other(box: Box) -> None:
    assert box.run(["sh", "-c", "cat in > out"], files={"in": "hello"}).is_good
    assert box.run_python("print(open('out').read())") == "hello"
    with Box(LIMITS) as other:
        assert "No such file" in other.run_python("open('out')")
    with pytest.raises(ValueError, match="below its directory"):
        box.run(["true"], files={"../x": ""})


# --- other processes ----------------------------------------------------------------------------


def test_other_processes_can_neither_be_killed_nor_seen(box: Box, open_air: Box) -> None:
    victims = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        attack = "os.kill(pid, 9); print('won')"
        assert _won(open_air, attack, pid=victims[0].pid)
        assert not _won(box, attack, pid=victims[1].pid)
        assert victims[0].wait(5) == -signal.SIGKILL
        assert victims[1].poll() is None
        # All it sees: the first process of the box, and itself.
        assert len(box.run(["sh", "-c", "ls -d /proc/[0-9]*"]).stdout.split()) <= 4
    finally:
        for victim in victims:
            victim.kill()
            victim.wait()


def test_a_program_that_kills_all_it_can_reach_ends_only_itself(box: Box) -> None:
    assert not _won(box, "os.kill(1, 9); import time; time.sleep(0.1); os.kill(1, 0); print('init')")
    assert not _won(box, "os.kill(-1, 9); print('won')")  # There is no other process that it may kill.
    assert box.run_python("print('again')") == "again"


def test_nobodys_environment_can_be_read(box: Box, open_air: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = """
import os, sys
from pathlib import Path
for each in Path('/proc').glob('[0-9]*/environ'):
    try:
        if b'se' + b'cret-9317' in each.read_bytes(): print('won'); break
    except OSError: pass
else: print('nothing')
"""
    holder = subprocess.Popen(["sleep", "60"], env={"KEY": "secret-9317"})
    monkeypatch.setenv("KEY", "secret-9317")
    try:
        assert open_air.run_python(owner) == "won"
        assert box.run_python(owner) == "nothing"
        with Box(LIMITS) as made_with_secret:
            assert "9317" not in made_with_secret.run(["sh", "-c", "env; cat /proc/*/environ"]).stdout
    finally:
        holder.kill()
        holder.wait()


def test_no_process_can_be_traced_not_even_ones_own_child(box: Box, open_air: Box) -> None:
    attack = """
child = os.fork()
if not child: ctypes.CDLL(None).pause()
libc = ctypes.CDLL(None, use_errno=True)
result = libc.ptrace(16, child, None, None)
os.kill(child, 9)
print('won' if result == 0 else os.strerror(ctypes.get_errno()))
"""
    assert _won(open_air, attack)
    assert not _won(box, attack)
    assert not _won(box, "open('/proc/1/mem', 'rb'); print('won')")


def test_rights_cannot_be_had_again(box: Box, open_air: Box) -> None:
    attack = """
result = ctypes.CDLL(None, use_errno=True).unshare(0x10000000)
print('won' if result == 0 else os.strerror(ctypes.get_errno()))
"""
    assert _won(open_air, attack)
    assert not _won(box, attack)
    status = dict(line.split(":\t") for line in box.run(["cat", "/proc/self/status"]).stdout.splitlines())
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"].strip() == "2"
    regaining = """
for call in (lambda: os.setuid(0), lambda: os.chroot('/tmp'), lambda: os.mknod('null', 0o20666, 0x103)):
    try: call(); print('won')
    except OSError as error: print(error)
"""
    assert not _won(box, regaining)


def test_nothing_of_the_owner_is_open_in_a_program(box: Box) -> None:
    with open(os.devnull) as held:
        os.set_inheritable(held.fileno(), True)
        with Box(LIMITS) as made:
            listed = made.run(["ls", "/proc/self/fd"], stdin="x").stdout.split()
            assert listed == ["0", "1", "2", "3"]  # The last is ls reading that directory.
            assert not _won(made, "os.write(0, b'x' * 9999); print('won')")
    assert box.run_python("import os; print(sorted(os.listdir('/proc/self/fd')))") == "['0', '1', '2', '3']"


# --- network ------------------------------------------------------------------------------------


def test_there_is_no_network(box: Box, open_air: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        attack = "socket.create_connection(('127.0.0.1', port), timeout=2); print('won')"
        port = server.getsockname()[1]
        assert _won(open_air, attack, port=port)
        assert not _won(box, attack, port=port)
    assert (
        "unreachable"
        in box.execute("import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)").stderr
    )


def test_sockets_that_no_network_namespace_holds_are_refused(box: Box, open_air: Box) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0dora-test-9317")
        server.listen()
        attack = "socket.socket(socket.AF_UNIX).connect('\\0dora-test-9317'); print('won')"
        assert _won(open_air, attack)
        assert not _won(box, attack)
    other = """
for family in (socket.AF_ALG, socket.AF_PACKET, socket.AF_VSOCK):
    try: socket.socket(family, socket.SOCK_STREAM); print('won')
    except OSError as error: print(error)
"""
    assert not _won(box, other)
    assert _won(box, "socket.socketpair(); socket.create_server(('127.0.0.1', 0)); print('won')")


# --- limits -------------------------------------------------------------------------------------


def test_a_fork_bomb_is_out_of_processes(box: Box) -> None:
    bomb = """
import os, time
pids = []
try:
    while True:
        pid = os.fork()
        if not pid: time.sleep(60)
        pids.append(pid)
except OSError as error: print(len(pids), error)
"""
    number = int(box.run_python(bomb).split()[0])
    assert 5 <= number < LIMITS.processes
    with Box(BoxLimits(processes=40)) as larger:
        assert number + 20 < int(larger.run_python(bomb).split()[0]) < 40
    # What forks without end is ended by its time, and the box goes on.
    with Box(BoxLimits(processes=40, wall_s=0.3)) as short:
        assert short.run(["sh", "-c", "f() { f | f & }; f; sleep 9"]).why_ended in ("wall", "exited")
        assert short.run(["true"]).is_good


def test_memory_is_limited_in_a_process_and_over_all(box: Box) -> None:
    one = box.execute(f"a = bytearray({2 * LIMITS.memory_bytes})")
    assert "MemoryError" in one.stderr
    part = LIMITS.memory_bytes // 3
    many = f"import os, time\nfor _ in range(2): os.fork()\na = bytearray(b'x') * {part}\ntime.sleep(9)"
    assert box.execute(many).why_ended == "memory"
    shared = f"import mmap\na = mmap.mmap(-1, {3 * LIMITS.memory_bytes})\nwhile a.write(b'x' * 4096): pass"
    assert box.execute(shared).why_ended == "memory"
    assert not _won(box, "os.memfd_create('x'); print('won')")


def test_files_are_limited_over_all(box: Box) -> None:
    filling = """
for number in range(9):
    with open(f'{place}/{number}', 'wb') as file: file.write(bytes(1 << 20))
print('won')
"""
    for place in ("/tmp", "/dev/shm"):
        assert not _won(box, filling, place=place)
    assert box.run(["find", "/tmp", "/dev/shm", "-maxdepth", "1", "-type", "f", "-delete"]).is_good


def test_what_is_said_is_limited(box: Box) -> None:
    done = box.execute("while True: print('x' * 1000)")
    assert (done.why_ended, len(done.stdout)) == ("output", LIMITS.output_bytes)
    assert "it wrote too much" in done.text


def test_time_is_limited_and_what_was_said_is_kept() -> None:
    with Box(BoxLimits(wall_s=0.6, cpu_s=1.0), is_isolated=False) as short:
        done = short.execute("import time; print('begun'); time.sleep(60)")
        assert (done.why_ended, done.stdout) == ("wall", "begun\n")
        assert done.wall_s < 5
    with Box(BoxLimits(wall_s=20, cpu_s=1.0), is_isolated=False) as busy:
        assert busy.execute("while True: pass").why_ended == "cpu"


def _processes_with(mark: str) -> int:
    found = subprocess.run(["pgrep", "-fc", f"sleep {mark}"], stdout=subprocess.PIPE, check=False)
    return int(found.stdout)


@pytest.mark.parametrize("kind", ["box", "open_air"])
def test_a_daemon_does_not_outlive_its_program(kind: str, request: pytest.FixtureRequest) -> None:
    where: Box = request.getfixturevalue(kind)
    mark = f"71.{os.getpid()}{kind == 'box':d}"
    started = where.run(
        ["sh", "-c", f"(setsid sleep {mark} >/dev/null 2>&1 &) ; pgrep -fc 'sleep {mark}' || true"]
    )
    assert started.is_good, started
    assert _processes_with(mark) == 0


def test_everything_ends_with_its_owner(box: Box) -> None:
    mark = f"72.{os.getpid()}"
    script = f"""
from dora_rl.envs.sandbox.box import Box
from dora_rl.envs.sandbox.limits import BoxLimits
Box(BoxLimits(wall_s=None)).run(["sh", "-c", "setsid sleep {mark} & sleep {mark}"])
"""
    owner = subprocess.Popen([sys.executable, "-c", script])
    _wait_until(lambda: _processes_with(mark) >= 2)
    owner.kill()
    owner.wait()
    _wait_until(lambda: _processes_with(mark) == 0)


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.05)
