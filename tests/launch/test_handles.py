"""Whatever starts a worker: messages come whole and in order, and its end is noticed, named and complete."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.dial import dial
from dora_rl.launch.dialled import DialledHandle, Invitation
from dora_rl.launch.framing import framed
from dora_rl.launch.listener import MAX_CALLERS
from dora_rl.launch.local import LocalHandle, LocalLaunch
from dora_rl.launch.messages import KEY_VARIABLE, LIFELINE_VARIABLE, Alive, Broken, Hello
from dora_rl.launch.protocol import Launch, Place, WorkerSpec
from dora_rl.launch.spares import SpareLaunch
from dora_rl.launch.waiting import wait_for

from ..raylets import Raylets
from .dialled import DialledLaunch
from .echo_worker import (
    Ask,
    Babble,
    Echo,
    EchoHalf,
    Exit,
    Fail,
    HangUp,
    Reply,
    Spawn,
    Spawned,
    Value,
    Work,
)

AnyHandle = LocalHandle | DialledHandle
Start = Callable[..., AnyHandle]
HERE = Path(__file__).parent
LIMIT_S = 30.0
BOTH = ("local", "spare", "dialled") if hasattr(os, "pidfd_open") else ("local", "spare")


ON_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.timeout(120)])


@pytest.fixture(params=(*BOTH, ON_RAY))
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts workers that do what they are told, and ends them."""
    is_on_ray = request.param == "ray"
    yield from starting(request.param, request.getfixturevalue("ray_launch") if is_on_ray else None)


@pytest.fixture(scope="session")
def ray_launch(raylets: Raylets) -> Iterator[RayLaunch]:
    with closing(RayLaunch(raylets.address)) as launch:
        yield launch


def starting(kind: str, launch: Launch | None = None) -> Iterator[Start]:
    launch = launch or {"local": LocalLaunch, "spare": SpareLaunch, "dialled": DialledLaunch}[kind]()
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    started: list[AnyHandle] = []

    def make(environment: dict[str, str] | None = None, **fields: Any) -> AnyHandle:
        variables = {"PYTHONPATH": path, **(environment or {})}
        if isinstance(launch, SpareLaunch) and environment is None:
            launch.prepare("echo_worker", ["colorsys", "no_such_module"], fields.get("place"))
            variables, fields = {}, {"search_path": (str(HERE), *sys.path)} | fields
        worker = WorkerSpec(name="echo", module="echo_worker", environment=variables, **fields)
        handle = launch.start(worker, Reply)
        assert isinstance(handle, AnyHandle)
        started.append(handle)
        return handle

    yield make
    for handle in started:
        handle.end(within_s=0.0)
    if isinstance(launch, SpareLaunch):
        launch.close()


def words(handle: AnyHandle, count: int) -> list[Any]:
    """So many words, or all until it is gone."""
    found: list[Any] = []
    until = time.monotonic() + LIMIT_S
    while len(found) < count and handle.is_alive:
        assert time.monotonic() < until, f"{count - len(found)} words never came"
        wait_for([handle], [], 1.0)
        found += handle.receive()
    return found


def gone(handle: AnyHandle) -> list[Any]:
    """Its last words."""
    return words(handle, 1_000_000)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def all_end(*pids: int) -> bool:
    until = time.monotonic() + LIMIT_S
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_running, pids))


# --- messages ---


def test_messages_larger_than_any_buffer_go_both_ways_and_keep_their_order(start: Start) -> None:
    handle = start()
    sent = [
        Echo(payload=bytes([number]) * size) for number, size in enumerate((3, 8_000_000, 0, 5_000_000, 7))
    ]
    for message in sent:
        handle.send(message)
    assert words(handle, len(sent)) == sent
    assert handle.flush()
    assert handle.is_alive
    assert not handle.is_mid_message


def test_a_message_that_comes_in_halves_is_one_message(start: Start) -> None:
    handle = start()
    handle.send(EchoHalf(payload=b"x" * 1000))
    until = time.monotonic() + LIMIT_S
    while not handle.is_mid_message:
        assert time.monotonic() < until
        wait_for([handle], [], 1.0)
        assert handle.receive() == []
    handle.send(Echo(payload=b""))
    assert words(handle, 1) == [Echo(payload=b"x" * 1000)]
    assert not handle.is_mid_message


def test_one_that_says_nothing_is_not_readable_and_one_that_does_is(start: Start) -> None:
    handle = start()
    handle.send(Echo(payload=b"!"))
    words(handle, 1)
    assert select.select([handle], [], [], 0.0)[0] == []
    handle.send(Echo(payload=b"?"))
    assert select.select([handle], [], [], LIMIT_S)[0] == [handle]
    assert words(handle, 1) == [Echo(payload=b"?")]


def test_a_busy_worker_gives_signs_of_life(start: Start) -> None:
    handle = start()
    handle.send(Work(seconds=2.5))
    first, *_ = said = words(handle, 2)
    assert first == Alive()
    while said[-1] != Value(value="done"):
        said += words(handle, 1)
    assert set(map(type, said)) == {Alive, Value}


# --- ends ---


def test_an_exit_is_noticed_after_the_last_words_and_named(start: Start) -> None:
    handle = start()
    for number in range(100):
        handle.send(Echo(payload=bytes([number]) * 100))
    handle.send(Exit(code=3))
    assert len(gone(handle)) == 100
    assert handle.end(within_s=LIMIT_S) == "exited with 3"
    assert handle.end(within_s=0.0) == "exited with 3"
    handle.send(Echo(payload=b"nobody hears"))
    assert handle.flush()
    assert handle.receive() == []
    assert not handle.is_alive


def test_a_kill_is_noticed_at_once_and_named(start: Start) -> None:
    handle = start()
    handle.send(Echo(payload=b""))
    words(handle, 1)
    began = time.monotonic()
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGKILL)
    assert gone(handle) == []
    assert time.monotonic() - began < 5.0
    assert handle.end(within_s=LIMIT_S) == "killed by SIGKILL"


def test_one_that_dies_before_it_is_up_is_gone(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    handle = start(environment={"PYTHONPATH": str(tmp_path)}, log=str(log))
    handle.send(Echo(payload=b""))
    assert gone(handle) == []
    assert handle.end(within_s=LIMIT_S) == "exited with 1"
    assert "No module named echo_worker" in log.read_text()


def test_a_failure_has_words_before_the_end(start: Start) -> None:
    handle = start()
    handle.send(Fail(message="no such thing"))
    assert gone(handle) == [Broken(message="no such thing", hint="do not")]
    assert handle.end(within_s=LIMIT_S) == "exited with 1"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"Epoch 1/3 done\n", "it would have 1,164,996,451 bytes"),
        (b"\0\0\0\1\xc1", "MessagePack data is malformed"),
        (framed(HangUp()), "Invalid value 'HangUp'"),
    ],
)
def test_what_is_no_message_loses_the_worker_and_not_what_it_said_before(
    start: Start, sent: bytes, said: str
) -> None:
    handle = start()
    for message in (Echo(payload=b"before"), Babble(sent=sent), Echo(payload=b"behind")):
        handle.send(message)
    assert gone(handle) == [Echo(payload=b"before")]
    assert handle.receive() == []
    ended = handle.end(within_s=1.0)
    assert ended.startswith("sent what is no message: ")
    assert said in ended
    assert handle.pid is None or all_end(handle.pid)


def test_one_that_is_told_what_it_does_not_know_ends_and_says_so_in_its_log(
    start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    handle = start(log=str(log))
    handle.send(Spawned(pid=1))
    assert gone(handle) == []
    assert handle.end(within_s=LIMIT_S) == "killed by SIGKILL"
    assert "ValidationError: Invalid value 'Spawned'" in log.read_text()


def test_one_that_is_ended_takes_along_what_it_started(start: Start) -> None:
    handle = start()
    handle.send(Spawn(holds_socket=False))
    (spawned,) = words(handle, 1)
    assert isinstance(spawned, Spawned)
    assert handle.pid is not None
    pids = (handle.pid, spawned.pid)
    assert handle.end(within_s=0.0) == "killed by SIGKILL"
    assert all_end(*pids)


def test_one_that_hangs_up_and_goes_on_is_gone_and_ended(start: Start) -> None:
    handle = start()
    handle.send(HangUp())
    assert gone(handle) == []
    assert handle.pid is not None
    pid = handle.pid
    assert handle.end(within_s=0.1) == "closed its socket"
    assert all_end(pid)


def test_a_death_is_noticed_though_something_it_started_holds_the_socket() -> None:
    for start in starting("local"):
        handle = start()
        handle.send(Spawn(holds_socket=True))
        (spawned,) = words(handle, 1)
        assert isinstance(spawned, Spawned)
        handle.send(Exit(code=0))
        assert gone(handle) == []
        assert is_running(spawned.pid)
        assert handle.end(within_s=LIMIT_S) == "exited with 0"
        assert all_end(spawned.pid)


@pytest.mark.parametrize("kind", BOTH)
def test_when_the_owner_is_killed_its_worker_ends_with_all_it_started(kind: str) -> None:
    command = [sys.executable, str(HERE / "owner.py"), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        owner.kill()
        owner.wait()
    assert all_end(*pids)


@pytest.mark.parametrize("start", ["local"], indirect=True)
@pytest.mark.skipif(not hasattr(os, "waitid"), reason="the system does not tell")
def test_a_stopped_worker_is_seen_to_be_until_it_is_continued(start: Start) -> None:
    handle = start()
    assert handle.pid is not None
    assert not handle.is_stopped
    os.kill(handle.pid, signal.SIGSTOP)
    while not handle.is_stopped:
        time.sleep(0.01)
    assert handle.is_stopped, "looking does not change it"
    os.kill(handle.pid, signal.SIGCONT)
    while handle.is_stopped:
        time.sleep(0.01)
    assert handle.end(within_s=0.0) == "killed by SIGKILL"
    assert not handle.is_stopped


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_when_the_owner_is_killed_a_stopped_worker_ends_too() -> None:
    command = [sys.executable, str(HERE / "owner.py"), "local"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        owner.kill()
        owner.wait()
    assert all_end(*pids)


def test_when_the_owner_is_killed_a_worker_that_was_stopped_as_it_started_ends_too() -> None:
    command = [sys.executable, str(HERE / "owner.py"), "stopped"]
    # As a run has it that was started by a service, or from a terminal.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
        owner.wait()
    assert all_end(pid)


# --- where it runs ---


def test_a_place_limits_threads_and_the_worker_s_own_environment_wins(start: Start) -> None:
    handle = start(place=Place(cpus=3), environment={"MKL_NUM_THREADS": "5"})
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        handle.send(Ask(variable=variable))
    assert words(handle, 2) == [Value(value="3"), Value(value="5")]
    assert Place(cpus=None).thread_limits == {}


def test_a_place_is_where_its_devices_are() -> None:
    assert Place.on("cpu", cpus=2) == Place(cpus=2)
    assert Place.on("cuda:1", "cuda:2", cpus=None) == Place(cpus=None, gpus=(1, 2))


def test_what_a_worker_prints_is_in_its_log_and_is_no_output_without_one(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for log in (tmp_path / "worker.log", None):
        handle = start(log=None if log is None else str(log))
        handle.send(Echo(payload=b""))
        words(handle, 1)
        handle.end(within_s=0.0)
    assert (tmp_path / "worker.log").read_text() == "up\n"
    assert capfd.readouterr() == ("", "up\n")


# --- who dials ---


def test_whoever_dials_with_a_wrong_key_or_none_is_hung_up_on() -> None:
    for start in starting("dialled"):
        handle = start()
        assert isinstance(handle, DialledHandle)
        for said in (framed(Hello(key="guess")), framed(Echo(payload=b"let me in")), b"\0\0\0\1\xc1", b""):
            with socket.create_connection(
                ("127.0.0.1", int(handle.address.rpartition(":")[2])), timeout=LIMIT_S
            ) as stranger:
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                wait_for([handle], [], LIMIT_S)
                until = time.monotonic() + LIMIT_S
                while select.select([stranger], [], [], 0.0)[0] == []:
                    assert time.monotonic() < until
                    assert handle.receive() == []
                assert stranger.recv(1) == b""
        handle.send(Echo(payload=b"for the right one"))
        assert words(handle, 1) == [Echo(payload=b"for the right one")]
        with pytest.raises(ConnectionRefusedError):
            dial(handle.address.removeprefix("tcp:"))
        for variable in (KEY_VARIABLE, LIFELINE_VARIABLE):
            handle.send(Ask(variable=variable))
        assert words(handle, 2) == [Value(value=None)] * 2, "what it starts gets neither"


def test_a_worker_s_key_opens_no_other_door() -> None:
    """Its agent's is not its own, and another worker has others."""
    invitations = [Invitation(WorkerSpec(name="one", module="none"), "127.0.0.1") for _ in range(2)]
    orders = [each.order for each in invitations]
    assert len({key for order in orders for key in (order.worker_key, order.agent_key)}) == 4
    said = {"agent": orders[0].agent_key, "worker": orders[0].worker_key, "another": orders[1].worker_key}
    pipes = {name: dial(orders[0].address.removeprefix("tcp:")) for name in said}
    for name, pipe in pipes.items():
        pipe.sendall(framed(Hello(key=said[name])) + b"and more")
    admitted = [
        each for _ in range(100) for each in (time.sleep(0.001), *invitations[0].listener.admit())[1:]
    ]
    assert sorted(each.name for each in admitted) == ["agent", "worker"]
    assert {each.received for each in admitted} == {b"and more"}
    assert pipes["another"].recv(1) == b""
    for open_one in (*(each.pipe for each in admitted), *pipes.values()):
        open_one.close()
    for each in invitations:
        each.listener.close()
        each.selector.close()


def test_only_so_many_may_wait_without_a_key_and_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    invitation = Invitation(WorkerSpec(name="one", module="none"), "127.0.0.1")
    where = invitation.order.address.removeprefix("tcp:")
    waiting = []
    for _ in range(MAX_CALLERS + 3):
        waiting.append(dial(where))
        assert invitation.listener.admit() == []
    for pipe in waiting[:3]:
        assert pipe.recv(1) == b"", "the oldest is hung up on"
    waiting[-1].sendall(b"\0\0\0")
    assert invitation.listener.admit() == []
    monkeypatch.setattr("dora_rl.launch.listener.HELLO_S", 0.0)
    invitation.listener.admit()
    for pipe in waiting[3:]:
        assert pipe.recv(1) == b""
    for pipe in waiting:
        pipe.close()
    invitation.listener.close()
    invitation.selector.close()


def test_a_worker_ends_with_its_agent_also_one_that_is_stopped() -> None:
    """A dialled one would go on: its owner is there, and its socket open."""
    for stops in (False, True):
        launch = DialledLaunch()
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        handle = launch.start(
            WorkerSpec(name="echo", module="echo_worker", environment={"PYTHONPATH": path}), Reply
        )
        handle.send(Spawn(holds_socket=False))
        (spawned,) = words(handle, 1)
        assert isinstance(spawned, Spawned)
        assert handle.pid is not None
        pids = (handle.pid, spawned.pid)
        if stops:
            os.kill(handle.pid, signal.SIGSTOP)
            state = Path(f"/proc/{handle.pid}/stat")
            while state.read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)
        os.kill(launch.agents[0].pid, signal.SIGKILL)
        assert gone(handle) == []
        assert handle.end(within_s=LIMIT_S) == "was lost with its agent"
        assert all_end(*pids)


# --- Ray ---


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_workers_are_lost_with_the_process_that_speaks_to_ray_and_the_next_one_begins_another(
    raylets: Raylets,
) -> None:
    with closing(RayLaunch(raylets.address)) as launch:
        for start in starting("ray", launch):
            first = start()
            first.send(Echo(payload=b"up"))
            assert words(first, 1) == [Echo(payload=b"up")]
            driver = launch._driver
            assert isinstance(driver, LocalHandle)
            os.kill(driver.pid, signal.SIGKILL)
            assert gone(first) == []
            assert first.end(within_s=LIMIT_S).startswith("was lost with node ")
            assert first.pid is not None
            assert all_end(first.pid)
            second = start()
            second.send(Echo(payload=b"again"))
            assert words(second, 1) == [Echo(payload=b"again")]


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_a_worker_starts_on_the_node_that_is_named_or_on_one_with_the_labels(raylets: Raylets) -> None:
    labelled = raylets.add(1, zone="b")
    with closing(RayLaunch(raylets.address)) as launch:
        for start in starting("ray", launch):
            handles = [start(place=Place(node=node)) for node in raylets.nodes[1:]]
            handles += [start(place=Place(cpus=None, labels={"zone": "b"}))]
            for handle in handles:
                handle.send(Echo(payload=b"here"))
                assert words(handle, 1) == [Echo(payload=b"here")]
            assert [handle.node for handle in handles] == [*raylets.nodes[1:], labelled]
            nowhere = start(place=Place(labels={"zone": "c"}))
            wait_for([nowhere], [], 1.0)
            assert nowhere.receive() == []
            assert not nowhere.is_placed
            assert nowhere.is_alive
            assert nowhere.end(within_s=0.0) == "was given up before it had begun"
