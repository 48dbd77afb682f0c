"""The trainer as several ranks: one process to whoever talks to it, and the numbers of one."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from dora_rl.core.recipe import Control
from dora_rl.launch.local import LOCAL, LocalHandle
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.run import messages as say
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_setup import DeviceLayout, RunSetup
from dora_rl.weights.store import Store

from .conftest import MakeSetup, run_setup, staged
from .talk import Talk
from .test_crashes import KILL, run, summary
from .test_trainer import groups, train, train_again
from .verdict import check_journal
from .victim import children

Start = Callable[..., Talk]
SOON_S = 10.0
NEEDS_TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts trainers of runs by their names, of so many ranks, and ends them."""
    workers: list[LocalHandle] = []

    def make(run: str, ranks: int = 2, device: str = "cpu", **changes: object) -> Talk:
        root = tmp_path / run
        (root / "checkpoints").mkdir(parents=True, exist_ok=True)
        devices = DeviceLayout(trainer_ranks=ranks, trainer_device=device)
        setup: RunSetup = run_setup(model, root, layout=devices, **changes)
        worker = LOCAL.start(
            WorkerSpec(
                name="worker", module="dora_rl.run.workers.trainer_main", log=str(tmp_path / "trainer.log")
            ),
            say.TrainerWord,
        )
        workers.append(worker)
        worker.send(say.Begin(setup=setup, store=str(root / "versions")))
        return Talk(worker)

    yield make
    for worker in workers:
        worker.end(within_s=0.0)


def ready(talk: Talk) -> list[int]:
    """Its other ranks, once it is there."""
    talk.word(say.TrainerReady)
    return children("workers.rank", of=talk.worker.pid)


def is_gone(pid: int) -> bool:
    """Over, or dead and not buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not all(map(is_gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return all(map(is_gone, pids))


def assert_close(root: Path, other: Path, version: int) -> None:
    ours, theirs = Store(root / "versions").fetch(version), Store(other / "versions").fetch(version)
    for name, tensor in ours.items():
        # Adam divides by the size of the gradient: where that is rounding, the direction is a coin's.
        close = (tensor - theirs[name]).abs() < 1e-4
        assert close.float().mean() > 0.999, name


# --- the numbers of one process ---


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_TWO_GPUS])])
def test_two_ranks_train_what_one_process_trains(start: Start, tmp_path: Path, device: str) -> None:
    alone, together = start("alone", 1, device), start("together", 2, device)
    for batch in range(3):
        if batch == 1:
            # A group that comes before the others.
            for talk in (alone, together):
                talk.worker.send(say.HandGroup(batch=1, group=groups(1)[0]))
        expected, found = train(alone, batch).metrics, train(together, batch).metrics
        for key in ("loss", "grad_norm", "entropy", "ratio_mean", "trained/tokens", "reward"):
            assert found[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
    assert_close(tmp_path / "together", tmp_path / "alone", 3)
    first, last = (Store(tmp_path / "together/versions").fetch(version) for version in (0, 3))
    assert not all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.slow
def test_a_checkpoint_is_gone_on_from_by_any_number_of_ranks(start: Start, tmp_path: Path) -> None:
    talk = start("run", 2)
    talk.word(say.TrainerReady)
    train(talk, 0)
    talk.worker.send(say.WriteCheckpoint())
    talk.worker.send(say.WriteCheckpoint())
    written = talk.word(say.CheckpointWritten)
    assert Path(written.directory, "model.safetensors").exists()
    train(talk, 1)
    talk.worker.end(within_s=0.0)

    again = start("run", 2)
    assert again.word(say.TrainerReady).version == 1
    # Bit for bit.
    assert train_again(again, 1).num_different == 0
    again.worker.send(say.Stop())
    assert again.worker.end(within_s=SOON_S) == "exited with 0"
    assert not (tmp_path / "run/rendezvous").exists()

    fewer = start("run", 1)
    assert fewer.word(say.TrainerReady).version == 1
    assert train_again(fewer, 1).num_different is not None
    train(fewer, 2)
    other = start("other", 1)
    for batch in range(3):
        train(other, batch)
    assert_close(tmp_path / "run", tmp_path / "other", 3)


# --- processes ---


def listening(pids: list[int]) -> set[str]:
    """Addresses, in the kernel's hexadecimal, on which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(os.readlink(link))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].split(":")[0])
    return found


@pytest.mark.slow
def test_ranks_listen_on_loopback_only_and_none_outlives_the_first(start: Start) -> None:
    talk = start("run", 3)
    others = ready(talk)
    assert len(others) == 2
    train(talk, 0)
    assert listening([talk.worker.pid, *others]) == {"0100007F"}
    os.kill(talk.worker.pid, signal.SIGKILL)
    assert all_gone(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SIGKILL", "rank 2 of 3 was killed by SIGKILL"),
        ("SIGSTOP", "rank 2 of 3 was silent for 8 s"),
        # An error of its own, whatever it is.
        ("SIGINT", "rank 2 of 3 broke: KeyboardInterrupt"),
    ],
)
def test_a_lost_rank_ends_the_trainer_with_the_reason(start: Start, name: str, reason: str) -> None:
    control = Control(max_staleness=2, silence_s=8.0)
    talk = start("run", 3, control=control)
    others = ready(talk)
    train(talk, 0)
    os.kill(others[1], signal.Signals[name])
    # In the midst of a step, for all they know.
    talk.worker.send(say.TrainStep(batch=1, groups=groups(1)))
    broken = talk.word(say.Broken)
    assert (broken.message, broken.is_lasting) == (reason, False)
    assert talk.worker.end(within_s=SOON_S) == "exited with 1"
    assert all_gone(others)


@pytest.mark.slow
def test_a_step_that_is_no_number_is_skipped_by_all_ranks(start: Start) -> None:
    talk = start("run", 2)
    talk.word(say.TrainerReady)
    # Finite, and infinite as a float32; only one rank has the trajectory it belongs to.
    first, second = groups(0)
    broken = msgspec.structs.replace(first.members[0], loss_weight=1e300)
    odd = msgspec.structs.replace(first, members=(broken, *first.members[1:]))
    talk.worker.send(say.TrainStep(batch=0, groups=(odd, second)))
    assert talk.word(say.StepPublished).metrics["updates/skipped"] == 1.0
    assert train(talk, 1).metrics["updates/made"] == 1.0


def test_more_ranks_than_gpus_are_the_users_mistake(start: Start) -> None:
    talk = start("run", 2, device=f"cuda:{torch.cuda.device_count()}")
    broken = talk.word(say.Broken)
    assert broken.is_lasting
    assert "2 ranks from cuda:" in broken.message
    assert broken.hint is not None


def test_ranks_have_devices_in_a_row() -> None:
    assert DeviceLayout(trainer_ranks=2).rank_device(1) == "cpu"
    assert DeviceLayout(trainer_device="cuda").rank_device(0) == "cuda:0"
    assert DeviceLayout(trainer_device="cuda:2", trainer_ranks=2).rank_device(1) == "cuda:3"


# --- whole runs ---


@pytest.mark.slow
def test_a_run_with_two_ranks_completes(make_setup: MakeSetup) -> None:
    setup = make_setup(layout=DeviceLayout(trainer_ranks=2))
    assert run_live(setup, staged(setup)).is_complete
    root = Path(setup.run_directory)
    check_journal(root)
    assert replay_live(root).difference is None


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_rank_that_is_killed_costs_the_run_nothing(make_setup: MakeSetup) -> None:
    setup = make_setup(steps=6, layout=DeviceLayout(trainer_ranks=2))
    ended = summary(run(setup, [(40, KILL, "workers.rank"), (80, KILL, "workers.rank")]))
    assert ended["is_complete"]
    assert ended["worker_deaths"]["the trainer"] >= 1
    root = Path(setup.run_directory)
    check_journal(root)
    assert replay_live(root).difference is None
    assert "exited with 1: rank 1 of 2 was killed by SIGKILL" in (root / "logs/orchestrator.log").read_text()
