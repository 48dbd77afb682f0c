"""`dora train` with an instance and a trainer that compute nothing."""

import sys
from itertools import pairwise
from pathlib import Path

import msgspec

from dora_rl.bench.episodes.scripted_launch import ScriptedLaunch
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.live_run import resume_live, run_live
from dora_rl.run.run_summary import RunSummary


def trained(arguments: list[str]) -> RunSummary:
    """Train what the arguments of `dora train` name."""
    if arguments[0] == "--resume":
        return resume_live(Path(arguments[1]), launch=ScriptedLaunch())
    sets = [value for option, value in pairwise(arguments) if option == "--set"]
    recipe = resolve_recipe(arguments[0], sets)
    assert recipe.run.directory is not None, "the run has a directory"
    with Preparation(recipe, recipe.run.directory) as preparation:
        return run_live(preparation.plan().setup, preparation.finish(), launch=ScriptedLaunch())


if __name__ == "__main__":
    print(msgspec.json.encode(trained(sys.argv[1:])).decode())
