"""A run directory becomes facts, whatever state it is in: finished, going on, interrupted or broken off.

Reads files only; takes no lock for longer than it needs to see whether the run goes on.
"""

import fcntl
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.control.schedules import make_schedule
from dora_rl.core.errors import ConfigError
from dora_rl.core.history import History
from dora_rl.core.inputs import Published
from dora_rl.core.recipe import Recipe
from dora_rl.costs.freshness_meter import FreshnessMeter
from dora_rl.costs.seconds_meter import SecondsMeter
from dora_rl.observe.live.completions import read_completions
from dora_rl.observe.live.dead_run_warnings import Warner, num_compared
from dora_rl.observe.live.follower import Follower
from dora_rl.observe.live.metrics_tail import MetricsTail
from dora_rl.observe.report.run_facts import RunFacts
from dora_rl.observe.result_words import overlong
from dora_rl.observe.timeline import Tracker
from dora_rl.run.prompt_table import PromptCounts
from dora_rl.store.errors import RunError
from dora_rl.store.run_directory import RunLayout

METRICS, COMPLETIONS, SETUP = "metrics.jsonl", "completions.jsonl", "setup.json"
PROMPTS = "prompts.msgpack"


def read_run(root: Path) -> RunFacts:
    """Read all facts of a run from its directory."""
    layout = RunLayout(root=root)
    if not layout.events.is_file():
        raise RunError(f"{root} is no run directory", hint="give the directory that `dora train` named")
    history, follower, tracker = History(layout.events), Follower(), Tracker()
    batch = history.recipe.batch
    meter = SecondsMeter(batch_groups=batch.groups, group_size=batch.group_size)
    freshness = FreshnessMeter(make_schedule(history.recipe.control, batch).max_staleness)
    warner = Warner(num_compared(history.recipe))
    for event, decisions in history:
        follower.watch(event, decisions)
        tracker.watch(event, decisions)
        meter.watch(event, decisions)
        freshness.watch(event, decisions)
        if isinstance(event, Published):
            warner.new(follower)
    state, recipe = follower.state, history.recipe
    if follower.num_steps is not None:
        recipe = msgspec.structs.replace(recipe, steps=follower.num_steps)
    return RunFacts(
        directory=str(root),
        condition=_condition(layout, follower, is_torn=history.torn_line is not None),
        recipe=recipe,
        elapsed_s=state.at,
        steps=follower.steps,
        evaluations=follower.evaluations,
        state=state,
        metrics=MetricsTail(root / METRICS).read(),
        completions=read_completions(root / COMPLETIONS),
        timeline=tracker.timeline(),
        seconds=meter.result(),
        freshness=freshness.result(),
        is_on_cpus=_is_on_cpus(root / SETUP),
        warnings=warner.all(follower),
        **_overlong(root / PROMPTS, history.recipe),
    )


def _overlong(prompts: Path, recipe: Recipe) -> dict[str, Any]:
    """What was left out of the run's prompts, as fields of RunFacts; a simulated run has none."""
    try:
        counts = PromptCounts.read(prompts)
    except ConfigError:
        return {}
    limit = recipe.data.max_prompt_tokens if recipe.data is not None else None
    parts = {
        "prompts": (len(counts.train), counts.num_overlong),
        "held-out prompts": (len(counts.held_out), counts.num_overlong_held_out),
    }
    return {
        "overlong": tuple(
            overlong(kept + left_out, left_out, limit, what=what)
            for what, (kept, left_out) in parts.items()
            if left_out
        ),
        "num_overlong": counts.num_overlong,
        "num_overlong_held_out": counts.num_overlong_held_out,
    }


def _condition(layout: RunLayout, follower: Follower, *, is_torn: bool) -> str:
    if is_in_use(layout.lock):
        return "running"
    if layout.is_finished or follower.is_over:
        return "finished"
    return "broke off in the middle of a line" if is_torn else "not finished; `dora train --resume` goes on"


def _is_on_cpus(setup: Path) -> bool:
    """Whether the run's set-up puts instances on CPUs; a simulated run has no set-up."""
    try:
        found = msgspec.json.decode(setup.read_bytes())
        return bool(found["devices"]["instance_device"] == "cpu")
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return False


def is_in_use(lock: Path) -> bool:
    """Whether a process holds the run's lock, which is tried for a moment only."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
