"""The laws, read off a run's journal by someone who was not there."""

from collections import Counter
from pathlib import Path

import pytest

from dora_rl.control.schedules import make_schedule
from dora_rl.costs.seconds_meter import SecondsMeter
from dora_rl.costs.seconds_spent import SecondsSpent
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import read_setup
from dora_rl.sim.audit import Audit
from dora_rl.store.journal import Journal


def check_journal(root: Path, *, is_complete: bool = True) -> None:
    """Every admitted trajectory is in exactly one batch or outcome, and none is too old."""
    layout = LiveLayout(root=root)
    setup = read_setup(layout.setup)
    audit = Audit(
        batch_groups=setup.recipe.batch.groups,
        group_size=setup.recipe.batch.group_size,
        max_staleness=make_schedule(setup.recipe.control, setup.recipe.batch).staleness_limit,
    )
    batch = setup.recipe.batch
    meter = SecondsMeter(batch_groups=batch.groups, group_size=batch.group_size)
    with Journal.open(layout.journal) as journal:
        for told, decisions in journal.events():
            audit.watch(told, decisions)
            meter.watch(told, decisions)
        summaries = [each for each in journal.summaries() if not each.is_evaluation]
    assert not audit.violations, audit.violations
    _check_seconds(meter.result())
    assert audit.duplicated() == 0
    if not setup.recipe.control.mixes_versions:
        assert audit.mixed() == 0
    if is_complete:
        assert audit.steps == setup.recipe.steps
        trained = [each for each in summaries if each.batch is not None and each.state == "scored"]
        closed = [each for each in summaries if each.state == "closed"]
        unfinished = {each.group for each in summaries} - {each.group for each in (*trained, *closed)}
        batches = Counter(each.batch for each in trained)
        assert set(batches) == set(range(setup.recipe.steps))
        assert not unfinished, f"groups {unfinished} ended nowhere"
        assert len({each.trajectory for each in trained}) == len(trained)


def _check_seconds(seconds: SecondsSpent) -> None:
    """Every second of every instance and of the trainer is in the account once, in each step."""
    for account in (seconds, *seconds.steps):
        of_all = seconds.num_instances * account.wall_s
        assert sum(account.instances.values()) == pytest.approx(of_all)
        assert sum(account.trainer.values()) == pytest.approx(account.wall_s)
        assert min(0.0, *account.instances.values(), *account.trainer.values()) > -1e-6
