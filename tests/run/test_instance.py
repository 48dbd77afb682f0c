"""The process of an instance, told and heard through its socket."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dora_rl.core.recipe.generation import EngineSettings, ResponseSettings
from dora_rl.launch.local import LOCAL, LocalHandle
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.run import messages as say

from .conftest import request, run_setup
from .talk import Talk

SCRIPTED = f"{Path(__file__).parents[1] / 'engines' / 'scripted.py'}:SCRIPTED"
SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            time.sleep(5.0)

sys.meta_path.insert(0, Slow())
"""
"""A module that Python imports as it starts: the first import of torch then takes five seconds longer."""


@pytest.fixture(scope="module")
def start(
    model: Path, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Talk]]:
    """Starts instances, and ends them."""
    workers: list[LocalHandle] = []
    directory = tmp_path_factory.mktemp("instances")

    def make(kind: str = "native") -> Talk:
        worker = LOCAL.start(
            WorkerSpec(
                name="worker",
                module="dora_rl.run.workers.instance_worker",
                log=str(directory / "instance.log"),
            ),
            say.InstanceWord,
        )
        workers.append(worker)
        setup = run_setup(
            model,
            directory,
            engine=EngineSettings(kind=kind, report_every_s=0.01),
            response=ResponseSettings(max_new_tokens=48),
        )
        worker.send(say.Begin(setup=setup, store=str(store)))
        talk = Talk(worker)
        talk.word(say.InstanceReady)
        worker.send(say.LoadVersion(version=0))
        talk.word(say.VersionLoaded)
        return talk

    yield make
    for worker in workers:
        worker.end(within_s=0.0)


@pytest.fixture(scope="module")
def talk(start: Callable[..., Talk]) -> Talk:
    """An instance that the tests share; they use other numbers for their requests."""
    return start()


@pytest.fixture(scope="module")
def other(start: Callable[..., Talk]) -> Talk:
    """A second one."""
    return start()


def test_a_request_is_told_as_it_grows_and_when_it_ends(talk: Talk) -> None:
    clock = talk.word(say.Report).clock
    talk.worker.send(say.StartRequest(request=request(1, max_new_tokens=200)))
    ended = talk.ended(1)
    reports = [word for word in talk.heard if isinstance(word, say.Report) and word.drawn]
    assert ended.is_truncated
    assert len(reports) > 1
    assert len(talk.tokens(1)) == 200
    assert ended.clock - clock == 200
    assert max(report.step_s for report in reports) > 0


def test_requests_of_several_versions_gain_a_token_a_round(talk: Talk) -> None:
    clock = talk.word(say.Report).clock
    talk.worker.send(say.LoadVersion(version=1))
    for version in (0, 1):
        talk.worker.send(say.StartRequest(request=request(2 + version, version=version, max_new_tokens=100)))
    last = max(talk.ended(2).clock, talk.ended(3).clock)
    talk.worker.send(say.DropVersion(version=1))
    assert 100 <= last - clock <= 102


def test_a_request_goes_on_behind_tokens_that_exist_with_the_same_draws(talk: Talk) -> None:
    talk.worker.send(say.StartRequest(request=request(4, max_new_tokens=30)))
    talk.ended(4)
    whole = talk.tokens(4)
    talk.worker.send(say.StartRequest(request=request(5, max_new_tokens=18, continued=tuple(whole[:12]))))
    talk.ended(5)
    assert talk.tokens(5) == whole[12:]


def test_nothing_is_heard_of_an_aborted_request(talk: Talk) -> None:
    talk.worker.send(say.StartRequest(request=request(6, max_new_tokens=400)))
    talk.has_drawn(6)
    talk.worker.send(say.AbortRequest(request=6))
    talk.worker.send(say.StartRequest(request=request(7, max_new_tokens=5)))
    assert talk.ended(7).kv_tokens == 0
    assert 0 < len(talk.tokens(6)) < 400


def test_a_moved_request_yields_the_same_tokens(talk: Talk, other: Talk, tmp_path: Path) -> None:
    talk.worker.send(say.StartRequest(request=request(10, max_new_tokens=300)))
    talk.ended(10)
    for number, path in ((11, None), (12, str(tmp_path / "kv"))):
        other.worker.send(say.StartRequest(request=request(number, max_new_tokens=300)))
        other.has_drawn(number)
        other.worker.send(say.ExportRequest(request=number, path=path))
        exported = other.word(say.RequestExported)
        assert (exported.kv_bytes > 0) == (path is not None)
        told = other.tokens(number)
        assert 0 < len(told) < 300
        if path is None:
            moved = request(number, max_new_tokens=300 - len(told), continued=tuple(told))
            talk.worker.send(say.StartRequest(request=moved))
        else:
            talk.worker.send(say.ImportRequest(request=number, path=path))
            assert talk.word(say.RequestImported).request == number
        talk.ended(number)
        assert told + talk.tokens(number) == talk.tokens(10)


def test_a_held_request_waits_for_free_and_goes_on_where_it_was(talk: Talk) -> None:
    talk.worker.send(say.StartRequest(request=request(60, max_new_tokens=6, holds_turn=True)))
    ended = talk.ended(60)
    assert (ended.is_held, ended.finish, ended.is_truncated) == (True, "length", True)
    for _ in range(3):
        assert talk.word(say.Report).kv_tokens > 0
    first = talk.tokens(60)
    # More at once than there are slots: what waits has none.
    for number in range(61, 61 + 16):
        talk.worker.send(say.StartRequest(request=request(number, max_new_tokens=6)))
    for number in range(61, 61 + 16):
        assert not talk.ended(number).is_held
    talk.forget(60)
    talk.worker.send(say.ResumeRequest(request=60, tokens=(8, 9), max_new_tokens=11))
    assert talk.ended(60).is_held
    second = talk.tokens(60)
    talk.worker.send(say.AbortRequest(request=60))
    whole = request(80, max_new_tokens=11, continued=(*first, 8, 9))
    talk.worker.send(say.StartRequest(request=whole))
    assert talk.ended(80).kv_tokens == 0
    assert second == talk.tokens(80)
    assert len(second) == 11


def test_a_held_request_is_parked_when_it_is_told_to_and_comes_back(talk: Talk) -> None:
    talk.worker.send(say.StartRequest(request=request(90, max_new_tokens=6, holds_turn=True)))
    assert talk.ended(90).is_held
    first = talk.tokens(90)
    talk.worker.send(say.ParkRequest(request=90))
    talk.worker.send(say.ParkRequest(request=12345))  # Nobody's by now.
    talk.until(lambda word: isinstance(word, say.Report) and word.kv_tokens == 0, "room on the device")
    talk.forget(90)
    talk.worker.send(say.ResumeRequest(request=90, tokens=(8, 9), max_new_tokens=11))
    assert talk.ended(90).is_held
    second = talk.tokens(90)
    assert talk.until(lambda word: isinstance(word, say.Report), "a report").seconds.kv_moves_s > 0.0
    talk.worker.send(say.AbortRequest(request=90))
    whole = request(91, max_new_tokens=11, continued=(*first, 8, 9))
    talk.worker.send(say.StartRequest(request=whole))
    talk.ended(91)
    assert second == talk.tokens(91)


def test_an_engine_that_holds_no_turns_begins_each_behind_its_tokens(start: Callable[..., Talk]) -> None:
    talk = start(SCRIPTED)
    talk.worker.send(say.StartRequest(request=request(1, max_new_tokens=6, holds_turn=True)))
    ended = talk.ended(1)
    assert (ended.is_held, ended.kv_tokens) == (True, 0)
    first = talk.tokens(1)
    talk.forget(1)
    talk.worker.send(say.ResumeRequest(request=1, tokens=(8, 9), max_new_tokens=300))
    talk.has_drawn(1)
    talk.worker.send(say.InterruptAll(version=1))
    ended = talk.ended(1)
    assert ended.is_held
    second = talk.tokens(1)
    assert (len(first), len(second)) == (6, 300)
    talk.forget(1)
    talk.worker.send(say.ResumeRequest(request=1, tokens=(7,), max_new_tokens=5))
    assert talk.ended(1).is_held
    whole = request(2, version=1, max_new_tokens=5, continued=(*first, 8, 9, *second, 7))
    talk.worker.send(say.StartRequest(request=whole))
    assert not talk.ended(2).is_held
    assert talk.tokens(1) == talk.tokens(2)
    talk.worker.send(say.AbortRequest(request=1))
    talk.worker.send(say.ResumeRequest(request=1, tokens=(7,), max_new_tokens=5))
    talk.worker.send(say.StartRequest(request=request(3, version=1, max_new_tokens=5)))
    talk.ended(3)
    assert not any(isinstance(word, say.RequestRefused) for word in talk.heard)


def test_a_request_that_cannot_be_resumed_is_refused_and_let_go(talk: Talk) -> None:
    talk.worker.send(say.StartRequest(request=request(81, max_new_tokens=6, holds_turn=True)))
    talk.ended(81)
    talk.worker.send(say.ResumeRequest(request=81, tokens=(5,) * 600, max_new_tokens=6))
    refused = talk.word(say.RequestRefused)
    assert refused.request == 81
    assert "leave none to generate" in refused.reason
    talk.worker.send(say.ResumeRequest(request=81, tokens=(5,), max_new_tokens=6))
    talk.worker.send(say.StartRequest(request=request(82, max_new_tokens=5)))
    assert talk.ended(82).kv_tokens == 0


@pytest.mark.parametrize("number", [83, 84])
def test_a_request_moves_while_it_waits(talk: Talk, other: Talk, tmp_path: Path, number: int) -> None:
    path = None if number == 83 else str(tmp_path / "kv")
    other.worker.send(say.StartRequest(request=request(number, max_new_tokens=6, holds_turn=True)))
    other.ended(number)
    other.worker.send(say.ExportRequest(request=number, path=path))
    exported = other.word(say.RequestExported)
    assert exported.drawn.tokens == ()
    assert (exported.kv_bytes > 0) == (path is not None)
    first = other.tokens(number)
    if path is None:
        whole = request(number, max_new_tokens=9, continued=(*first, 8, 9))
        talk.worker.send(say.StartRequest(request=whole))
    else:
        talk.worker.send(say.ImportRequest(request=number, path=path))
        talk.word(say.RequestImported)
        talk.word(say.Report)
        talk.worker.send(say.ResumeRequest(request=number, tokens=(8, 9), max_new_tokens=9))
    talk.ended(number)
    talk.worker.send(say.StartRequest(request=request(100, max_new_tokens=9, continued=(*first, 8, 9))))
    talk.ended(100)
    assert talk.tokens(number) == talk.tokens(100)
    talk.worker.send(say.AbortRequest(request=number))
    talk.forget(100)


def test_nothing_decodes_while_it_is_paused(talk: Talk) -> None:
    talk.worker.send(say.LendDevice())
    talk.word(say.DeviceLent)
    clock = talk.word(say.Report).clock
    talk.worker.send(say.StartRequest(request=request(20)))
    for _ in range(5):
        assert talk.word(say.Report).clock == clock
    talk.worker.send(say.ReturnDevice())
    talk.word(say.DeviceReturned)
    talk.ended(20)


def test_versions_come_whole_or_as_a_change_and_requests_keep_theirs(talk: Talk) -> None:
    talk.worker.send(say.LoadVersion(version=1))
    talk.worker.send(say.StartRequest(request=request(30, version=1)))
    talk.worker.send(say.LoadVersion(version=2, drop=(0,)))
    talk.worker.send(say.StartRequest(request=request(31, version=2)))
    talk.worker.send(say.StartRequest(request=request(32, version=0)))
    assert [talk.word(say.VersionLoaded).version for _ in range(2)] == [1, 2]
    failed = talk.word(say.RequestRefused)
    assert failed.request == 32
    assert "not resident" in failed.reason
    assert (talk.ended(30).drawn.version, talk.ended(31).drawn.version) == (1, 2)
    assert talk.tokens(30) != talk.tokens(31)


def test_an_interrupted_request_goes_on_under_the_other_version(other: Talk) -> None:
    other.worker.send(say.StartRequest(request=request(40, max_new_tokens=300)))
    other.has_drawn(40)
    other.worker.send(say.InterruptAll(version=2))
    other.word(say.VersionLoaded)
    ended = other.ended(40)
    drawn = [d for word in other.heard if isinstance(word, say.Report) for d in word.drawn if d.request == 40]
    versions = [d.version for d in (*drawn, ended.drawn)]
    assert len(other.tokens(40)) == 300
    assert versions == sorted(versions)
    assert set(versions) == {0, 2}


def test_a_held_request_is_interrupted_and_goes_on_under_the_other_version(other: Talk) -> None:
    other.worker.send(say.LoadVersion(version=0))
    other.word(say.VersionLoaded)
    other.worker.send(say.StartRequest(request=request(41, max_new_tokens=6, holds_turn=True)))
    other.ended(41)
    first = other.tokens(41)
    for version in (1, 2):
        other.worker.send(say.InterruptAll(version=version))
        other.word(say.VersionLoaded)
    assert other.word(say.Report).kv_tokens == 0
    other.forget(41)
    other.worker.send(say.ResumeRequest(request=41, tokens=(8, 9), max_new_tokens=9))
    assert other.ended(41).is_held
    whole = request(42, version=2, max_new_tokens=9, continued=(*first, 8, 9))
    other.worker.send(say.AbortRequest(request=41))
    other.worker.send(say.StartRequest(request=whole))
    other.ended(42)
    assert other.tokens(41) == other.tokens(42)


def test_an_instance_says_what_held_its_requests_up_and_idles_for_free(other: Talk, tmp_path: Path) -> None:
    before, began = other.word(say.Report).seconds, time.monotonic()
    for number in (50, 51):
        other.worker.send(say.StartRequest(request=request(number, version=2, max_new_tokens=300)))
        other.has_drawn(number)
    other.worker.send(say.ExportRequest(request=51, path=str(tmp_path / "kv")))
    other.worker.send(say.InterruptAll(version=1))
    other.ended(50)
    other.word(say.Report)  # What a turn of the loop took is in the report after it.
    busy, elapsed_s = other.word(say.Report).seconds, time.monotonic() - began
    names = [name for name in busy.__struct_fields__ if name.endswith("_s")]
    spent = {name: getattr(busy, name) - getattr(before, name) for name in names}
    assert min(spent.values()) > 0, spent
    assert sum(spent.values()) < elapsed_s
    idle = other.word(say.Report).seconds
    assert [other.word(say.Report).seconds for _ in range(3)] == [idle] * 3


def test_a_hang_is_silence_and_a_death_is_noticed_at_once(other: Talk) -> None:
    other.word(say.Report)
    os.kill(other.worker.pid, signal.SIGSTOP)
    time.sleep(0.2)
    other.worker.receive()
    time.sleep(0.2)
    assert other.worker.is_alive
    assert other.worker.receive() == []
    os.kill(other.worker.pid, signal.SIGKILL)
    began = time.monotonic()
    while other.worker.is_alive:
        other.worker.receive()
        assert time.monotonic() - began < 1.0
    assert other.worker.end(within_s=1.0) == "killed by SIGKILL"


def test_it_ends_when_it_is_told_to(talk: Talk) -> None:
    talk.worker.send(say.Stop())
    assert talk.worker.end(within_s=10.0) == "exited with 0"


def test_an_instance_gives_signs_of_life_while_torch_is_slow_to_import(
    model: Path, store: Path, tmp_path: Path
) -> None:
    """On a cold disk that takes longer than a silence may last; `patience.start_s` is the limit then."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    worker = LOCAL.start(
        WorkerSpec(
            name="worker",
            module="dora_rl.run.workers.instance_worker",
            log=str(tmp_path / "instance.log"),
            environment={"PYTHONPATH": path},
        ),
        say.InstanceWord,
    )
    try:
        setup = run_setup(model, tmp_path, response=ResponseSettings(max_new_tokens=48))
        worker.send(say.Begin(setup=setup, store=str(store)))
        talk = Talk(worker)
        talk.word(say.InstanceReady)
        assert sum(isinstance(word, say.Alive) for word in talk.heard) >= 4
    finally:
        worker.end(within_s=0.0)
