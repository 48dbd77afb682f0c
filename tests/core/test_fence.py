"""Epochs: each is taken once, by whoever began to lead last, and everybody before is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from dora_rl.core.fence import StaleLeader, take_epoch, taken_epochs

TAKER = """
import sys
from pathlib import Path
from dora_rl.core.fence import take_epoch
sys.stdin.read()
print(*[take_epoch(Path(sys.argv[1])).epoch for _ in range(50)])
"""


def test_whoever_began_last_leads_and_everybody_before_is_refused_by_name(tmp_path: Path) -> None:
    first = take_epoch(tmp_path / "epochs")
    first.check()
    second = take_epoch(tmp_path / "epochs")
    second.check()
    with pytest.raises(StaleLeader, match=rf"process \d+ on .* leads the run in {tmp_path} now \(epoch 2\)"):
        first.check()
    assert take_epoch(tmp_path / "epochs", above=7).epoch == 8
    assert sorted(taken_epochs(tmp_path / "epochs")) == [1, 2, 8]


def test_only_who_leads_may_renew_and_its_workers_of_before_are_refused(tmp_path: Path) -> None:
    first = take_epoch(tmp_path / "epochs")
    renewed = first.renewed()
    renewed.check()
    assert renewed.epoch == 2
    with pytest.raises(StaleLeader):
        first.check()
    other = take_epoch(tmp_path / "epochs")
    with pytest.raises(StaleLeader, match=r"leads the run in .* now \(epoch 3\)"):
        renewed.renewed()
    other.check()


def test_epochs_that_several_take_at_once_are_each_taken_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKER, str(tmp_path / "epochs")]
    takers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.close()
        taker.stdin = None
    taken = sorted(int(word) for taker in takers for word in taker.communicate()[0].split())
    assert taken == list(range(1, 151))
