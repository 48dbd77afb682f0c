"""Every key of a recipe is read: by a run, or by the simulator alone, and then training speaks of it.

A small live run in processes of its own, then parts of others (`reading/parts_of_a_run.py`), note which
module reads which key (`reading/key_recorder.py`). A key that nobody reads fails here, and so does one that
only the simulator reads and of which `dora train` would say nothing.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec import inspect as schema

from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.unused_keys import ONLY_SIMULATED
from dora_rl.core.struct_loader import alternatives

READING = Path(__file__).with_name("reading")

RECIPE = """
model: tiny
steps: 3
batch: {groups: 2, group_size: 2}
control: {max_staleness: 1, rebalance_period_s: 0.2}
data:
  train: {name: letters}
  held_out_share: 0.1
  order: {name: mine.py:backwards, options: {first: 9}}
rewards: [mine.py:length]
response: {max_new_tokens: 6}
warm_start: {steps: 1, update_rows: 2}
trainer: {serving_dtype: float32, micro_batch_tokens: 512}
cluster: {slots: 8}
engine: {report_every_s: 0.05}
evaluation: {every: 2, max_rows: 2, samples: 2, pass_function: length}
checkpoints: {every: 1}
scoring: {processes: 1}
devices: {kind: cpu, memory_gib: 6, instance_threads: 1, trainer_threads: 1}
"""

MINE = """
import os
from pathlib import Path

def backwards(rows, seed, first):
    while True:
        first -= 1
        yield first % 9

def length(completions, **columns):
    marker = Path(__file__).with_name("died")
    if not marker.exists():
        marker.touch()
        os._exit(1)
    return [float(len(each)) for each in completions]
"""

ELSEWHERE = ("simulation", "task.turns", "task.lengths")
"""Sections that only the simulator reads here: its own, what a run refuses, what it reads on GPUs alone."""


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules that read each field, by `Struct.field`."""
    directory = tmp_path_factory.mktemp("reading")
    (directory / "recipe.yaml").write_text(RECIPE)
    (directory / "mine.py").write_text(MINE)
    noted = directory / "reads"
    path = os.pathsep.join([str(READING), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = os.environ | {"PYTHONPATH": path, "DORA_KEY_READS": str(noted)}
    train = "from dora_rl.cli.main import main; raise SystemExit(main())"
    for arguments in (
        ["-c", train, "train", "recipe.yaml", "--set", "run.directory=run"],
        [str(READING / "parts_of_a_run.py"), str(directory)],
    ):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
    found: dict[str, set[str]] = {}
    for line in noted.read_text().splitlines():
        key, reader = line.split()
        found.setdefault(key, set()).add(reader)
    return found


def keys(kind: schema.Type | None = None, prefix: str = "") -> list[tuple[str, set[str]]]:
    """Every key's path, with the names under which its reading may have been noted."""
    found: list[tuple[str, set[str]]] = []
    for each in alternatives(kind or schema.type_info(Recipe)):
        match each:
            case schema.StructType(cls=cls, fields=fields):
                # A section may be copied into a record of more fields, which is then read.
                names = {cls.__name__, *(own.__name__ for own in cls.__subclasses__())}
                for field in fields:
                    found.append((f"{prefix}{field.name}", {f"{name}.{field.name}" for name in names}))
                    found += keys(field.type, f"{prefix}{field.name}.")
            case schema.VarTupleType(item_type=inner):
                found += keys(inner, prefix)
    return found


@pytest.mark.timeout(300)
def test_every_key_is_read_by_somebody(readers: dict[str, set[str]]) -> None:
    unread = [path for path, names in keys() if not any(readers.get(name) for name in names)]
    assert unread == []


@pytest.mark.timeout(300)
def test_what_a_run_does_not_read_is_spoken_of(readers: dict[str, set[str]]) -> None:
    """Where only simulator and cost models read a key, a run says so; and of no other."""
    walked = keys()
    sections = {path.rpartition(".")[0] for path, _ in walked}
    only_simulated = {
        path
        for path, names in walked
        if path not in sections
        and all(
            reader.startswith(("dora_rl.sim.", "dora_rl.costs."))
            for name in names
            for reader in readers.get(name, ())
        )
    }
    unspoken = {path for path in only_simulated if not path.startswith(ELSEWHERE)}
    assert unspoken == set(ONLY_SIMULATED)


def test_there_are_as_many_keys_as_the_reference_shows() -> None:
    assert len(keys()) > 200
    assert len({path for path, _ in keys()}) > 180


def test_a_field_that_nobody_reads_is_found(tmp_path: Path) -> None:
    """The recorder notes what is read by name, and neither copies, comparisons nor checks."""
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(READING)!r})
        from pathlib import Path
        import key_recorder
        key_recorder.install(Path({str(tmp_path / "reads")!r}))
        from msgspec.structs import replace
        from dora_rl.core.recipe import Batch, Control, Recipe
        from dora_rl.core.recipe.resolution import resolve_recipe
        from dora_rl.core.recipe.unused_keys import training_remarks
        from dora_rl.control.schedules import make_schedule

        recipe = resolve_recipe(None, ["control.schedule=one_step_off", "warm_start.rate=0.1"])
        assert recipe == replace(recipe, steps=recipe.steps) and list(training_remarks(recipe))
        make_schedule(recipe.control, recipe.batch)
    """)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    noted = {line.split()[0] for line in (tmp_path / "reads").read_text().splitlines()}
    assert noted == {"Control.schedule", "Control.max_staleness", "Batch.groups"}
