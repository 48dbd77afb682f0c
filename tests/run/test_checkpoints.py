"""Which checkpoints stay, which one a trainer goes on from, and what a kill leaves behind."""

from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.fence import Fence, StaleLeader, take_epoch
from dora_rl.core.recipe import Checkpoints
from dora_rl.run.workers.checkpoints import (
    STATE,
    load_newest,
    remove_leftovers,
    take_checkpoint,
    with_state,
    write_checkpoint,
)
from dora_rl.trainer.checkpoint import CheckpointError


class NumberedState:
    """A checkpoint whose state is a number."""

    is_apart = False

    def __init__(self, version: int) -> None:
        self._version = version

    def write(self, directory: Path, *, state: str, origin: Path) -> None:
        (directory / state).mkdir(parents=True)
        (directory / "model.safetensors").write_text("weights")
        (directory / state / "number").write_text(str(self._version))


class CountingTrainer:
    """A trainer whose only state is its version."""

    is_first = True

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def take_checkpoint(self) -> NumberedState:
        return NumberedState(self.version)

    def load_checkpoint(self, state: Path) -> None:
        try:
            self.version = int((state / "number").read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{state / 'number'} was changed after it was written") from error


def write(root: Path, *versions: int, damaged: Any = (), **kept: int) -> int:
    oldest = -1
    for version in versions:
        trainer: Any = CountingTrainer(version)
        pending = take_checkpoint(trainer, root, damaged)
        assert pending is not None
        fence = Fence(directory=root / "epochs", epoch=1)
        oldest = write_checkpoint(pending, model=root, kept=Checkpoints(**kept), fence=fence)
    return oldest


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_keep_holds_for_models_too(tmp_path: Path) -> None:
    write(tmp_path, 2, 4, 6, 8, keep=2)
    assert names(tmp_path) == ["step_00006", "step_00008"]
    assert [path.name for path in with_state(tmp_path)] == ["step_00006", "step_00008"]


def test_more_models_than_states_may_be_kept(tmp_path: Path) -> None:
    write(tmp_path, 2, 4, 6, 8, keep=1, keep_models=3)
    assert names(tmp_path) == ["step_00004", "step_00006", "step_00008"]
    assert [path.name for path in with_state(tmp_path)] == ["step_00008"]
    with pytest.raises(ConfigError, match=r"keep_models = 1 is below checkpoints\.keep = 2"):
        Checkpoints(keep=2, keep_models=1)


def test_the_oldest_start_is_that_of_the_oldest_kept_and_the_initial_model_counts(tmp_path: Path) -> None:
    assert write(tmp_path, 2, keep=2) == 0, "the initial model is the second chance"
    assert write(tmp_path, 4, keep=2) == 2
    assert write(tmp_path, 6, keep=2) == 4
    assert write(tmp_path / "one", 2, keep=1) == 2


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_checkpoint_is_named_passed_over_and_written_again(tmp_path: Path, damage: str) -> None:
    write(tmp_path, 2, 4, keep=2)
    number = tmp_path / "step_00004" / STATE / "number"
    if damage == "changed":
        number.write_text("four")
    else:
        number.unlink()
        number.parent.rmdir()
    trainer: Any = CountingTrainer()
    damaged = load_newest(trainer, tmp_path)
    assert trainer.version == 2
    assert list(damaged) == [tmp_path / "step_00004"]
    assert "step_00004" in damaged[tmp_path / "step_00004"]
    assert write(tmp_path, 4, damaged=damaged, keep=2) == 2
    assert load_newest(trainer, tmp_path) == {}
    assert trainer.version == 4


def test_a_damaged_checkpoint_is_not_counted_among_those_kept(tmp_path: Path) -> None:
    write(tmp_path, 2, 4, 6, keep=3)
    for version in (4, 6):
        (tmp_path / f"step_0000{version}" / STATE / "number").write_text("no number")
    trainer: Any = CountingTrainer()
    damaged = load_newest(trainer, tmp_path)
    assert trainer.version == 2
    assert write(tmp_path, 7, damaged=damaged, keep=2) == 2
    assert [path.name for path in with_state(tmp_path)] == ["step_00002", "step_00007"]
    assert names(tmp_path) == ["step_00002", "step_00006", "step_00007"], "the model of 6 may be whole"


def test_where_none_is_whole_the_trainer_stays_at_the_initial_model(tmp_path: Path) -> None:
    write(tmp_path, 2, 4, keep=2)
    for state in with_state(tmp_path):
        (state / STATE / "number").write_text("")
    trainer: Any = CountingTrainer()
    assert len(load_newest(trainer, tmp_path)) == 2
    assert trainer.version == 0


def test_what_a_kill_left_half_written_or_half_deleted_goes(tmp_path: Path) -> None:
    write(tmp_path, 2, keep=2)
    left = [tmp_path / ".step_00004.partial", tmp_path / "step_00002" / f".{STATE}.partial"]
    for clean in (lambda: remove_leftovers(tmp_path), lambda: write(tmp_path, 4, keep=2)):
        for path in left:
            (path / STATE).mkdir(parents=True)
        clean()
        assert not any(path.exists() for path in left)


def test_nothing_is_written_or_deleted_once_another_process_leads_the_run(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, keep=1)
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        take_epoch(tmp_path / "epochs")
    with pytest.raises(StaleLeader, match="leads the run"):
        write(tmp_path, 3, keep=1)
    assert sorted(each for each in tmp_path.rglob("*") if "epochs" not in each.parts) == before
