"""dora-rl: reinforcement-learning post-training with multi-version streaming rollout.

    from dora_rl import train

    run = train(model="path/or/name", data=rows, rewards=[reward], steps=50)

train, start, resume   run, run beside the program, go on        plan, simulate   predict, without running
dry_run                what a run would be and need              Run, Recipe      what they return and take
evaluate, generate     a model answers rows or prompts           Chat, Turn       what an episode is given
from_agent, from_environment, from_gym, from_mcp   episodes that play agents and environments of others
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dora_rl.core.version import VERSION

if TYPE_CHECKING:
    from dora_rl.api import Interrupted as Interrupted
    from dora_rl.api import Run as Run
    from dora_rl.api import dry_run as dry_run
    from dora_rl.api import evaluate as evaluate
    from dora_rl.api import generate as generate
    from dora_rl.api import plan as plan
    from dora_rl.api import resume as resume
    from dora_rl.api import simulate as simulate
    from dora_rl.api import start as start
    from dora_rl.api import train as train
    from dora_rl.core.errors import DoraError as DoraError
    from dora_rl.core.recipe import Recipe as Recipe
    from dora_rl.envs.adapters.agent import from_agent as from_agent
    from dora_rl.envs.adapters.gym_environment import from_gym as from_gym
    from dora_rl.envs.adapters.mcp_tools import from_mcp as from_mcp
    from dora_rl.envs.adapters.trl_environment import from_environment as from_environment
    from dora_rl.envs.episodes.blocking_chat import BlockingChat as BlockingChat
    from dora_rl.envs.episodes.chat import Chat as Chat
    from dora_rl.envs.episodes.turn import EpisodeTruncated as EpisodeTruncated
    from dora_rl.envs.episodes.turn import Turn as Turn
    from dora_rl.envs.sandbox.limits import BoxLimits as BoxLimits
    from dora_rl.envs.sandbox.sandbox import Sandbox as Sandbox
    from dora_rl.envs.warm_pool import WarmPool as WarmPool

__version__ = VERSION

_HOMES = {
    "DoraError": "dora_rl.core.errors",
    "BoxLimits": "dora_rl.envs.sandbox.limits",
    "Recipe": "dora_rl.core.recipe",
    "Sandbox": "dora_rl.envs.sandbox.sandbox",
    "WarmPool": "dora_rl.envs.warm_pool",
    "from_agent": "dora_rl.envs.adapters.agent",
    "from_environment": "dora_rl.envs.adapters.trl_environment",
    "from_gym": "dora_rl.envs.adapters.gym_environment",
    "from_mcp": "dora_rl.envs.adapters.mcp_tools",
    "BlockingChat": "dora_rl.envs.episodes.blocking_chat",
    "Chat": "dora_rl.envs.episodes.chat",
    "EpisodeTruncated": "dora_rl.envs.episodes.turn",
    "Turn": "dora_rl.envs.episodes.turn",
    **dict.fromkeys(
        (
            "Interrupted",
            "Run",
            "dry_run",
            "evaluate",
            "generate",
            "plan",
            "resume",
            "simulate",
            "start",
            "train",
        ),
        "dora_rl.api",
    ),
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """What is public, imported when it is asked for: the package itself loads nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dora_rl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
