"""The process of the trainer, told and heard through its socket."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dora_rl.launch.local import LOCAL, LocalHandle
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.run import messages as say
from dora_rl.trainer.train_batch import TrainGroup, TrainTrajectory
from dora_rl.weights.store import Store

from .conftest import run_setup
from .talk import Talk


def groups(batch: int) -> tuple[TrainGroup, ...]:
    """Two groups of three, other ones for every batch."""
    return tuple(
        TrainGroup(
            id=2 * batch + i,
            members=tuple(
                TrainTrajectory(
                    prompt=(5, 9, 11),
                    response=(20 + batch, 30 + i, 40 + member),
                    logprobs=(-4.6, -4.6, -4.6),
                    version=batch,
                    reward=float(member),
                )
                for member in range(3)
            ),
        )
        for i in range(2)
    )


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Callable[[str], Talk]]:
    """Starts trainers of runs by their names, and ends them."""
    workers: list[LocalHandle] = []

    def make(run: str) -> Talk:
        root = tmp_path / run
        (root / "checkpoints").mkdir(parents=True, exist_ok=True)
        worker = LOCAL.start(
            WorkerSpec(
                name="worker", module="dora_rl.run.workers.trainer_main", log=str(tmp_path / "trainer.log")
            ),
            say.TrainerWord,
        )
        workers.append(worker)
        worker.send(say.Begin(setup=run_setup(model, root), store=str(root / "versions")))
        return Talk(worker)

    yield make
    for worker in workers:
        worker.end(within_s=0.0)


def train(talk: Talk, batch: int) -> say.StepPublished:
    talk.worker.send(say.TrainStep(batch=batch, groups=groups(batch)))
    return talk.word(say.StepPublished)


def train_again(talk: Talk, batch: int) -> say.StepReplayed:
    talk.worker.send(say.TrainStep(batch=batch, groups=groups(batch), is_replay=True))
    return talk.word(say.StepReplayed)


def versions(root: Path, version: int) -> dict[str, torch.Tensor]:
    return dict(Store(root / "versions").fetch(version))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_steps_are_published_and_a_restart_catches_up_exactly(
    start: Callable[[str], Talk], tmp_path: Path
) -> None:
    talk = start("run")
    assert talk.word(say.TrainerReady).version == 0
    for batch in range(4):
        assert train(talk, batch).metrics["reward"] == 1.0
        if batch == 1:
            talk.worker.send(say.WriteCheckpoint())
            assert talk.word(say.CheckpointWritten).version == 2
    assert Store(tmp_path / "run/versions").versions == (0, 1, 2, 3, 4)
    assert not same(versions(tmp_path / "run", 3), versions(tmp_path / "run", 4))

    talk.worker.end(within_s=0.0)
    again = start("run")
    assert again.word(say.TrainerReady).version == 2
    replays = [train_again(again, batch) for batch in (2, 3)]
    assert [replay.num_different for replay in replays] == [0, 0]
    train(again, 4)
    expected = start("other")
    expected.word(say.TrainerReady)
    for batch in range(5):
        train(expected, batch)
    assert same(versions(tmp_path / "run", 5), versions(tmp_path / "other", 5))


def test_groups_may_come_one_by_one(start: Callable[[str], Talk], tmp_path: Path) -> None:
    whole, streamed = start("whole"), start("streamed")
    train(whole, 0)
    streamed.worker.send(say.HandGroup(batch=0, group=groups(0)[0]))
    train(streamed, 0)
    assert same(versions(tmp_path / "whole", 1), versions(tmp_path / "streamed", 1))


def test_a_retired_version_cannot_be_had_any_more(start: Callable[[str], Talk], tmp_path: Path) -> None:
    talk = start("run")
    train(talk, 0)
    talk.worker.send(say.RetireVersion(version=0))
    talk.worker.send(say.RetireVersion(version=1))
    train(talk, 1)
    assert Store(tmp_path / "run/versions").versions == (1, 2)
