"""Whole runs with an engine that is not the native one: fewer abilities, the same laws."""

import os
import signal
from pathlib import Path

import pytest

from dora_rl.core import decisions as do
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.history import History
from dora_rl.core.inputs import Input, InstanceJoined, InstanceLost, Published
from dora_rl.core.recipe import Checkpoints
from dora_rl.core.recipe.episodes import RoleSettings
from dora_rl.core.recipe.generation import EngineSettings, ResponseSettings
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_setup import DeviceLayout

from .conftest import MakeSetup, staged
from .verdict import check_journal
from .victim import children

SCRIPTED = f"{Path(__file__).parents[1] / 'engines' / 'scripted.py'}:SCRIPTED"
LIMITS = Limits(num_blocks=256, block_size=16, max_running=16, step_tokens=64, max_positions=512)


@pytest.mark.timeout(180)
def test_a_run_keeps_its_laws_with_an_engine_of_ones_own_and_through_a_death(make_setup: MakeSetup) -> None:
    setup = make_setup(
        steps=30,
        engine=EngineSettings(kind=SCRIPTED, report_every_s=0.05),
        response=ResponseSettings(max_new_tokens=48),
        checkpoints=Checkpoints(every=10),
        engine_config=EngineConfig(limits=LIMITS, max_versions=1),
        layout=DeviceLayout(instances=2),
    )
    seen: set[int] = set()
    struck: list[int] = []

    def strike(event: Input, _: object) -> None:
        """Once both have joined, so that control hears of a loss."""
        if isinstance(event, InstanceJoined):
            seen.add(event.instance)
        if isinstance(event, Published) and len(seen) == 2 and not struck:
            struck.append(children("workers.instance")[0])
            os.kill(struck[0], signal.SIGKILL)

    summary = run_live(setup, staged(setup), [strike])
    root = Path(setup.run_directory)
    assert summary.is_complete
    assert summary.steps == 30
    assert len(struck) == sum(summary.worker_deaths.values()) == 1
    check_journal(root)
    assert replay_live(root).difference is None
    events = list(History(root / "events.jsonl"))
    joined = [event for event, _ in events if isinstance(event, InstanceJoined)]
    assert {(each.spec.max_versions, each.spec.moves_kv, each.spec.continues) for each in joined} == {
        (1, False, True)
    }
    assert any(isinstance(event, InstanceLost) for event, _ in events)
    decided = [decision for _, decisions in events for decision in decisions]
    assert all(not each.with_kv for each in decided if isinstance(each, do.Move))
    assert len({each.version for each in decided if isinstance(each, do.Start)}) > 10


@pytest.mark.timeout(60)
def test_an_engine_that_cannot_be_imported_ends_the_run_with_a_sentence(make_setup: MakeSetup) -> None:
    setup = make_setup(engine=EngineSettings(kind="nowhere:KIND"))
    with pytest.raises(UserError, match="no module 'nowhere'"):
        run_live(setup, staged(setup))


def test_a_frozen_version_plays_no_role_where_an_engine_holds_one_version(make_setup: MakeSetup) -> None:
    roles = {"user": RoleSettings(version="initial")}
    with pytest.raises(ConfigError, match="holds 1 versions at most: no room for the one that plays a role"):
        make_setup(roles=roles, engine_config=EngineConfig(limits=LIMITS, max_versions=1),
                   layout=DeviceLayout(instances=2))  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_engine_that_turns_out_to_hold_one_version_is_refused_by_name(make_setup: MakeSetup) -> None:
    setup = make_setup(
        roles={"user": RoleSettings(version="initial")},
        engine=EngineSettings(kind=SCRIPTED, report_every_s=0.05),
        engine_config=EngineConfig(limits=LIMITS, max_versions=4),
    )
    with pytest.raises(UserError, match="this engine holds one version at a time"):
        run_live(setup, staged(setup))
