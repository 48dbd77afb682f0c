"""Numbers of runs that start at once."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from dora_rl.core.recipe import Recipe
from dora_rl.store.claim import claimed, next_free
from dora_rl.store.errors import RunError
from dora_rl.store.run_directory import RunDirectory

HOLD = """
import sys, time
from pathlib import Path
from dora_rl.store.claim import claimed
with claimed(Path(sys.argv[1]), "r") as path:
    print(path.name, flush=True)
    time.sleep(600)
"""


def test_no_number_is_given_out_twice_at_a_time(tmp_path: Path) -> None:
    everybody = Barrier(8)

    def one(_: int) -> str:
        everybody.wait()
        with claimed(tmp_path / "runs", "r") as path:
            everybody.wait()
            return path.name

    with ThreadPoolExecutor(8) as pool:
        names = sorted(pool.map(one, range(8)))
    assert names == [f"r-{number}" for number in range(1, 9)]
    assert not [*tmp_path.glob("runs/*")], "nothing is left of runs that did not begin"


def test_a_claim_of_a_process_that_was_killed_is_free_again(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "r-1"
        with claimed(tmp_path, "r") as path:
            assert path.name == "r-2"
        other.kill()
    assert (tmp_path / "r-1").is_dir()
    assert next_free(tmp_path, "r").name == "r-1"
    with claimed(tmp_path, "r") as path:
        assert path.name == "r-1"


def test_a_run_begins_where_it_was_claimed_and_stays(tmp_path: Path) -> None:
    with claimed(tmp_path, "r") as path:
        RunDirectory.create(path, Recipe()).close()
    assert (path / "recipe.yaml").is_file()
    with claimed(tmp_path, "r") as other:
        assert other.name == "r-2"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match=r"cannot write .*file/runs: Not a directory"),
        claimed(tmp_path / "file" / "runs", "r"),
    ):
        raise AssertionError("nothing is claimed")
