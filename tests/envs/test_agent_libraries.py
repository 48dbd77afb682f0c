"""Agents of several libraries, unmodified: a conversation is one branch, and the same when begun again."""

import gc
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from dora_rl.core.named import load_named
from dora_rl.envs.adapters.agent import from_agent

from .scripted_run import ScriptedRun
from .test_agents import play

# What these libraries leave open is theirs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

AGENTS = Path(__file__).parents[2] / "examples/agents/agents.py"
LIBRARIES = (
    ("openai_agent", "openai"),
    ("agents_sdk_agent", "agents"),
    ("agents_sdk_streamed", "agents"),
    ("langgraph_agent", "langgraph"),
    ("pydantic_agent", "pydantic_ai"),
)


def calls_twice(context: str) -> str:
    """Calls a tool two times, then answers."""
    number = context.count("[tool]")
    return f'CALL add {{"a": {number}, "b": 2}}' if number < 2 else "42"


@pytest.mark.parametrize(("agent", "package"), LIBRARIES)
def test_an_agent_has_one_branch_and_is_answered_when_it_is_begun_again(agent: str, package: str) -> None:
    pytest.importorskip(package)
    run = ScriptedRun(calls_twice)
    for _ in range(2):
        run.contexts.clear()
        run.ends.clear()
        episode = from_agent(load_named(f"{AGENTS}:{agent}"), reward=lambda result: float(result == "42"))
        assert play(episode, run=run).reward == 1.0
        assert run.num_drawn == 3, "what is known is not drawn again"
    assert len({asked.branch for asked in run.asked()}) == 1
    gc.collect()
