"""The result of one simulated run, on one screen."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from dora_rl.core.recipe import Recipe
from dora_rl.core.visible_text import one_line
from dora_rl.costs.seconds_spent import SecondsSpent
from dora_rl.observe.result_words import all_clear, bottleneck, count, limit_words, staleness_words
from dora_rl.observe.seconds_words import seconds_lines
from dora_rl.sim.simulated_run import Result, measured_steps

_LABEL = 15


def show(console: Console, recipe: Recipe, result: Result, seconds: SecondsSpent) -> None:
    """Print the result of a simulated run, and where its seconds went."""
    model = escape(one_line(recipe.model))
    console.print(f"[bold]{model}[/] on {result.gpus} x {recipe.cluster.gpu}, schedule "
                  f"[bold]{result.schedule}[/], {result.steps} steps, seed {result.seed}",
                  highlight=False)  # fmt: skip
    for label, text in _lines(result, measured_steps(recipe), seconds):
        console.print(f"  [dim]{label:<{_LABEL}}[/]{text}", highlight=False, soft_wrap=True)


def _lines(r: Result, measured: tuple[int, int], seconds: SecondsSpent) -> Iterator[tuple[str, str]]:
    moved = f"{r.migrations:,} requests, {r.kv_bytes_moved / 1e9:,.0f} GB of KV"
    lost = f"{count(r.instance_losses, 'instance')} lost"
    yield "devices", _devices(r)
    yield "step time", f"[bold]{r.step_time_s:,.1f} s[/], {limit_words(r)}"
    yield "speed", f"{r.tokens_per_s:,.0f} tokens/s, prompts and responses"
    trainer, instances = 1 - r.trainer_idle_fraction, 1 - r.instance_idle_fraction
    counted = f"in steps {measured[0] + 1} to {measured[1]}, which count"
    yield "busy", f"trainer {trainer:.1%} {counted}; instances {instances:.1%} of the whole run"
    yield from seconds_lines(seconds)
    yield (
        "staleness",
        staleness_words(
            r.staleness_mean, r.staleness_least, greatest=r.staleness_max, allowed=r.max_staleness
        ),
    )
    yield "active groups", f"{r.active_groups:,} = {r.active_groups / r.batch_groups:.2f} B"
    stalls = f"starved {r.starved_s:,.0f} s, window {r.window_stall_s:,.0f} s"
    yield "stalls", f"{stalls} in the whole run, from its start to its end"
    yield "moves", f"{moved}, {r.version_changes:,} version changes, {r.parked_requests:,} parked"
    if r.instance_losses:
        yield "faults", f"{lost}, {r.restarted_trajectories:,} trajectories restarted"
    yield "bottleneck", bottleneck(r, seconds=seconds)
    yield "laws", all_clear(r)


def _devices(r: Result) -> str:
    parts = [
        (r.rollout_gpus, "generate"),
        (r.elastic_gpus, "generate and train in turn"),
        (r.gpus - r.rollout_gpus - r.elastic_gpus, "train"),
    ]
    shares = ", ".join(f"{gpus} {what}" for gpus, what in parts if gpus)
    return f"{shares}; {count(r.instances, 'instance')} of {r.tensor_parallel}"
