"""The plan of a run for people and for scripts, and the lines when a run is over. Decides nothing."""

from collections.abc import Iterator, Sequence

import msgspec
import yaml
from rich.console import Console
from rich.text import Text

from dora_rl.control.schedules import make_schedule
from dora_rl.core.recipe.unused_keys import ONLY_SIMULATED
from dora_rl.core.struct_loader import to_dict
from dora_rl.core.visible_text import visible
from dora_rl.observe.live.metrics_tail import Metrics
from dora_rl.observe.live.step_words import after_step, duration, first_and_last
from dora_rl.observe.result_words import count, overlong
from dora_rl.observe.tables import table
from dora_rl.observe.terminal import fact
from dora_rl.prepare.run_plan import RunPlan
from dora_rl.run.run_setup import DeviceLayout
from dora_rl.run.run_summary import RunSummary

_LABEL = 12


def show_plan(console: Console, plan: RunPlan) -> None:
    """Print a run's plan: the resolved recipe, which process runs where, memory and disk."""
    console.print(Text(visible(_resolved(plan))), soft_wrap=True)
    for label, text in _lines(plan):
        fact(console, label, text, width=_LABEL)
    console.print(_ledger(plan))


def plan_as_json(plan: RunPlan) -> str:
    """A run's plan as one JSON object, for scripts."""
    devices = plan.setup.devices
    fields = {
        "recipe": to_dict(plan.setup.recipe),
        "run_directory": plan.setup.run_directory,
        "model": plan.setup.model_directory,
        "parameters": plan.num_parameters,
        "rows": plan.num_rows,
        "held_out_rows": plan.num_held_out,
        "overlong_rows": plan.num_overlong,
        "overlong_held_out_rows": plan.num_overlong_held_out,
        "max_new_tokens": plan.setup.max_new_tokens,
        "devices": devices,
        "processes": _processes(plan),
        "memory": plan.memory,
        "memory_limits": {place.name: place.num_bytes for place in plan.places},
        "disk": plan.disk,
        "disk_bytes": plan.disk_bytes,
        "free_disk_bytes": plan.free_disk_bytes,
    }
    return msgspec.json.format(msgspec.json.encode(fields)).decode()


def overlong_lines(plan: RunPlan) -> Iterator[str]:
    """Sentences about the prompts that were left out of the run, if any."""
    limit = plan.setup.data.max_prompt_tokens
    for what, num_left_out, num_kept in (
        ("prompts", plan.num_overlong, plan.num_rows),
        ("held-out prompts", plan.num_overlong_held_out, plan.num_held_out),
    ):
        if num_left_out:
            yield overlong(num_left_out + num_kept, num_left_out, limit, what=what)


def start_lines(plan: RunPlan) -> Iterator[str]:
    """Lines about a plan for somebody who starts the run: devices, schedule, prompts left out."""
    setup, batch = plan.setup, plan.setup.recipe.batch
    max_staleness = make_schedule(setup.recipe.control, batch).max_staleness
    steps = f"{count(setup.recipe.steps, 'step')} of {count(batch.groups, 'group')} of {batch.group_size}"
    yield f"devices: {_devices(setup.devices)}"
    yield f"schedule: {setup.recipe.control.schedule} with S = {max_staleness}, {steps}"
    if plan.num_held_out and not setup.recipe.evaluation.every:
        yield f"held out: {count(plan.num_held_out, 'row')}, not used: evaluation.every is 0"
    yield from overlong_lines(plan)


def summary_lines(
    summary: RunSummary, metrics: Sequence[Metrics] = (), whole_s: float | None = None
) -> Iterator[str]:
    """Lines about how a run ended.

    `metrics` are all that the run wrote; `whole_s` is the seconds from the command to now.
    """
    done = f"{count(summary.steps, 'step')} in {duration(summary.elapsed_s)}"
    if whole_s is not None:
        done += f" ({duration(whole_s)} with preparations)"
    trained = f"{summary.trained_trajectories:,} trajectories trained on"
    yield f"{'finished' if summary.is_complete else 'interrupted'}: {done}, {trained}"
    if summary.steps_asked is not None:
        yield f"the stream of rows ended before the {summary.steps_asked:,} steps asked for"
    if summary.overlong_rows:
        yield f"rows of the stream left out, as their prompts are too long: {summary.overlong_rows:,}"
    reward = summary.last_metrics.get("reward")
    if reward is not None:
        yield f"reward of the last step: {reward:.3f}"
    yield from _by_function(metrics)
    yield from _held_out(metrics, summary.steps)
    if summary.closed_trajectories:
        yield "left out: " + ", ".join(f"{n:,} {what}" for what, n in summary.closed_trajectories.items())
    if summary.reward_failures:
        yield "without a reward: " + ", ".join(f"{n:,} {what}" for what, n in summary.reward_failures.items())
    if summary.checkpoint:
        yield f"model: {summary.checkpoint}"
    if not summary.is_complete:
        yield f"go on with: dora train --resume {summary.run_directory}"


def _by_function(metrics: Sequence[Metrics]) -> Iterator[str]:
    """A line about each of several reward functions: its mean at first and at last."""
    for name, metric in _functions(metrics, "rewards/").items():
        first, last = first_and_last(list(_column(metrics, metric).values()))
        yield f"reward {name}: {first:.3f} at first, {last:.3f} at last"


def _held_out(metrics: Sequence[Metrics], num_steps: int) -> Iterator[str]:
    """The lines about held-out rewards, the sum and each function: the first evaluation and the last."""
    for name, metric in {"reward": "eval/reward", **_functions(metrics, "eval/rewards/")}.items():
        if found := _column(metrics, metric):
            ends = sorted({min(found), max(found)})
            parts = (f"{found[step]:.3f} {_when(step, num_steps)}" for step in ends)
            yield f"held-out {name}: {', '.join(parts)}"


def _functions(metrics: Sequence[Metrics], prefix: str) -> dict[str, str]:
    """The metric of each reward function by the function's name; empty where there is a single one."""
    found = dict.fromkeys(key for row in metrics for key in row if key.startswith(prefix))
    names = {key.removeprefix(prefix).removesuffix("/mean"): key for key in found if key.endswith("/mean")}
    return names if len(names) > 1 else {}


def _column(metrics: Sequence[Metrics], metric: str) -> dict[int, float]:
    """The values of a metric by step, where it has one."""
    return {int(step): float(value) for row in metrics
            if isinstance(step := row.get("step"), int | float)
            and isinstance(value := row.get(metric), int | float)}  # fmt: skip


def _when(step: int, num_steps: int) -> str:
    if step in (0, num_steps):
        return "after" if step else "before"
    return after_step(step)


def _resolved(plan: RunPlan) -> str:
    """The recipe as YAML, without what only simulator and planner read."""
    whole = to_dict(plan.setup.recipe)
    applied = {key: value for key, value in whole.items() if key not in ("task", "simulation")}
    applied["cluster"] = {
        key: value for key, value in whole["cluster"].items() if f"cluster.{key}" not in ONLY_SIMULATED
    }
    return yaml.safe_dump(applied, sort_keys=False)


def _lines(plan: RunPlan) -> Iterator[tuple[str, str]]:
    setup = plan.setup
    rewards = ", ".join(f"{reward.weight:g} x {reward.label}" for reward in setup.recipe.rewards)
    held_out = f", {plan.num_held_out:,} held out" if plan.num_held_out else ""
    prompts = f"prompts up to {plan.longest_prompt_tokens} tokens, responses up to {setup.max_new_tokens}"
    yield "run", setup.run_directory
    dtype = setup.recipe.trainer.serving_dtype
    yield "model", f"{setup.model_directory}, {plan.num_parameters:,} parameters, served in {dtype}"
    if plan.computing_note:
        yield "", plan.computing_note
    rows = "a stream, read as it is needed" if setup.data.train.stream else f"{plan.num_rows:,} to train on"
    yield "rows", f"{rows}{held_out}; {prompts}"
    for text in overlong_lines(plan):
        yield "left out", text
    if setup.recipe.episode is not None:
        yield "episodes", setup.recipe.episode.function
    if rewards:
        yield "rewards", rewards
    yield "devices", _devices(setup.devices)
    yield "processes", ", ".join(count(number, what) for what, number in _processes(plan).items())
    yield "disk", _disk(plan)


def _devices(devices: DeviceLayout) -> str:
    pausing = [number for number in range(devices.instances) if devices.pauses(number)]
    turns = ""
    if pausing:
        who = "generation pauses" if len(pausing) == devices.instances else _pausing(pausing)
        turns = f"; {who} while it trains"
    homes = dict.fromkeys(map(devices.instance_home, range(devices.instances)))
    return (
        f"{count(devices.instances, 'instance')} on {', '.join(homes)} with "
        f"{count(devices.instance_threads, 'thread')}, {_trainer(devices)} with "
        f"{count(devices.trainer_threads, 'thread')}{turns}"
    )


def _pausing(instances: Sequence[int]) -> str:
    numbers = " and ".join(map(str, instances))
    return f"instance {numbers} pauses" if len(instances) == 1 else f"instances {numbers} pause"


def _trainer(devices: DeviceLayout) -> str:
    homes = list(dict.fromkeys(map(devices.rank_device, range(devices.trainer_ranks))))
    if devices.trainer_ranks == 1:
        return f"trainer on {homes[0]}"
    return f"trainer as {devices.trainer_ranks} ranks on {', '.join(homes)}, each"


def _processes(plan: RunPlan) -> dict[str, int]:
    devices, episode = plan.setup.devices, plan.setup.recipe.episode
    judging = {"reward worker": plan.setup.recipe.scoring.processes}
    return {
        "orchestrator": 1,
        "instance": devices.instances,
        "trainer rank" if devices.trainer_ranks > 1 else "trainer": devices.trainer_ranks,
        **(judging if episode is None else {"episode worker": episode.processes}),
    }


def _disk(plan: RunPlan) -> str:
    parts = ", ".join(f"{entry.what} {in_units(entry.num_bytes)}" for entry in plan.disk)
    short = "  NOT ENOUGH" if plan.disk_bytes > plan.free_disk_bytes else ""
    return f"up to {in_units(plan.disk_bytes)} ({parts}) of {in_units(plan.free_disk_bytes)} free{short}"


def _ledger(plan: RunPlan) -> object:
    made = table("Memory", "place", "what", ">size", caption="~ estimated; everything else is counted")
    for place in dict.fromkeys(entry.place for entry in plan.memory):
        limit = next((each.num_bytes for each in plan.places if each.name == place), None)
        for entry in plan.memory:
            if entry.place == place:
                size = f"{'~ ' if entry.is_estimate else ''}{in_units(entry.num_bytes)}"
                made.add_row(place, entry.what, size)
        of = f" of {in_units(limit)}" if limit is not None else ""
        made.add_row(place, "[bold]together[/]", f"[bold]{in_units(plan.used_bytes(place))}{of}[/]")
    return made


def in_units(num_bytes: int) -> str:
    """A number of bytes in KiB, MiB or GiB, for people to read."""
    if num_bytes < 2**20:
        return f"{num_bytes / 2**10:.1f} KiB"
    return f"{num_bytes / 2**20:,.1f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:,.2f} GiB"
