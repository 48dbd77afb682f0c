"""Whole runs of agents over HTTP: a program that is killed with its worker, and libraries of others."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dora_rl import train
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.recipe.generation import ResponseSettings
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.store.journal import Journal

from .conftest import MakeSetup, staged
from .test_crashes import run, summary
from .verdict import check_journal
from .victim import Plan

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.slow

TALKING = Path(__file__).with_name("talking.py")
AGENTS = Path(__file__).parents[2] / "examples/agents/agents.py"


def talking(make_setup: MakeSetup) -> RunSetup:
    """A run of a few seconds whose episodes are played by a program."""
    episode = EpisodeSettings(
        function="agent",
        options={"command": [sys.executable, "-I", "-S", str(TALKING)]},
        processes=1,
        max_turns=8,
        max_context_tokens=256,
    )
    return make_setup(
        episode=episode,
        rewards=(),
        response=ResponseSettings(max_new_tokens=16, stop_strings=("a", "b", "c")),
    )


def check_turns(root: Path) -> None:
    """Every trained member has the turns of its program, of its first attempt and of one version."""
    with Journal.open(LiveLayout(root=root).journal) as journal:
        batches = list(journal.batches_after(journal.oldest_start))
    members = [member for batch in batches for group in batch.groups for member in group.members]
    assert members
    for member in members:
        assert member.key.attempt == 0
        assert [len(branch.turns) for branch in member.every_branch] == [3, 1]
        for branch in member.every_branch:
            assert {stretch.version for stretch in branch.response.stretches} <= {None, member.version}


def test_a_program_over_http_trains(make_setup: MakeSetup) -> None:
    setup = talking(make_setup)
    done = run_live(setup, staged(setup))
    root = Path(setup.run_directory)
    assert done.is_complete
    check_journal(root)
    check_turns(root)
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step_time" in line]
    assert {line["rewards/endpoint/requests/mean"] for line in steps} == {3.0}
    assert {line["rewards/endpoint/sampling/mean"] for line in steps} == {1.0}
    assert {line["rewards/endpoint/branches/mean"] for line in steps} == {1.0}


DEATHS: tuple[Plan, ...] = (
    # Once: an attempt whose code runs in two processes that die is broken, and agents are slow to come back.
    [(60, "SIGKILL", "workers.episode_worker")],
    [(50, "SIGKILL", "workers.episode_worker"), (90, "SIGKILL", "workers.instance_worker")],
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", DEATHS)
def test_an_agent_whose_worker_is_killed_is_begun_again_and_answered(
    make_setup: MakeSetup, plan: Plan
) -> None:
    setup = talking(make_setup)
    assert summary(run(setup, plan))["is_complete"]
    root = Path(setup.run_directory)
    check_journal(root)
    check_turns(root)
    assert replay_live(root).difference is None


@pytest.mark.timeout(300)
def test_a_run_of_agents_that_is_killed_goes_on_with_the_turns_it_had(make_setup: MakeSetup) -> None:
    setup = talking(make_setup)
    for number, moment in enumerate((20, "TurnEnded", 60)):
        ended = run(setup, [(moment, "SIGKILL", "self")], is_first=number == 0)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr[-2000:]
    else:
        summary(run(setup, [], is_first=False))
    root = Path(setup.run_directory)
    check_journal(root)
    check_turns(root)


# --- libraries of others ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has seen how tools are called."""
    done = train(
        "tools",
        steps=1,
        data={"train": {"name": "tools", "options": {"rows": 64, "held_out_rows": 8}}},
        warm_start={"steps": 200, "update_rows": 16, "rate": 3e-3},
        batch={"groups": 2, "group_size": 4},
        evaluation={"every": None},
        run={"directory": str(tmp_path_factory.mktemp("taught") / "run")},
        progress=False,
    )
    assert done.checkpoint is not None
    return done.checkpoint


LIBRARIES = (
    ("openai_agent", "openai"),
    ("agents_sdk_agent", "agents"),
    ("agents_sdk_streamed", "agents"),
    ("langgraph_agent", "langgraph"),
    ("pydantic_agent", "pydantic_ai"),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("agent", "package"), LIBRARIES)
def test_an_agent_of_another_library_trains_unmodified(
    agent: str, package: str, taught: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found: Any = train(
        "tools",
        model=str(taught),
        steps=5,
        data={"train": {"name": "tools", "options": {"rows": 64, "held_out_rows": 8}}},
        warm_start={"steps": 0},
        batch={"groups": 2, "group_size": 4},
        evaluation={"every": None},
        episode={
            "function": "agent",
            "options": {"agent": f"{AGENTS}:{agent}", "reward": f"{AGENTS}:solved"},
            "max_context_tokens": 512,
            "processes": 1,
        },
        run={"directory": str(tmp_path / "run")},
        progress=False,
    )
    check_journal(tmp_path / "run")
    steps = [line for line in found.metrics if "rewards/endpoint/requests/mean" in line]
    assert len(steps) == 5
    asked = sum(line["rewards/endpoint/requests/mean"] for line in steps) / 5
    branches = sum(line["rewards/endpoint/branches/mean"] for line in steps) / 5
    print(f"{agent}: {asked:.2f} requests an episode, reward {steps[-1]['reward']:.2f}")
    assert asked > 1.1, "the policy calls tools"
    assert branches == 0.0, "its conversation is one branch"
