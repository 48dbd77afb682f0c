"""A cluster plan, shown: what to do, what it gives, and how much each choice matters. Decides nothing."""

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dora_rl.core.visible_text import one_line
from dora_rl.costs.gpu_memory import Memory
from dora_rl.observe.result_words import bottleneck, count, limit_words
from dora_rl.observe.tables import table
from dora_rl.sim.plan.refine import ClusterPlan, Option

_LABEL = 17
_GIB = 2.0**30


def show(console: Console, plan: ClusterPlan) -> None:
    """Print a cluster plan."""
    c = plan.recipe.cluster
    batch = plan.recipe.batch
    console.print(
        f"[bold]{escape(one_line(plan.recipe.model))}[/] on {plan.parts * c.gpus:,} x {c.gpu}, "
        f"{plan.parts * batch.groups:,} groups of {batch.group_size} a step",
        highlight=False,
    )
    for label, text in _lines(plan):
        console.print(f"  [dim]{label:<{_LABEL}}[/]{text}", highlight=False, soft_wrap=True)
    console.print(_options(plan))


def _lines(plan: ClusterPlan) -> Iterator[tuple[str, str]]:
    r = plan.result
    target = f"[bold]R = {plan.parts * r.active_groups:,}[/], {r.active_groups / r.batch_groups:.2f} B"
    models = f"{plan.predicted_step_s:,.1f} s by the cost models alone"
    yield "split", f"[bold]{_split(plan)}[/]"
    yield "tensor parallel", f"[bold]{r.tensor_parallel}[/], {count(plan.parts * r.instances, 'instance')}"
    yield "max_staleness", f"[bold]S = {r.max_staleness}[/], mean {r.staleness_mean:.2f}"
    yield "active_groups", f"{target}, as the controller finds it when left out"
    yield "step time", f"[bold]{r.step_time_s:,.1f} s[/], {limit_words(r)}; {models}"
    yield "speed", f"{plan.parts * r.tokens_per_s:,.0f} tokens/s, prompts and responses"
    yield "bottleneck", bottleneck(r, tried=_tried(plan))
    yield from _memory_lines(plan.memory)


def _tried(plan: ClusterPlan) -> dict[str, float]:
    """How the step time changes with more of each choice, as the table below the plan has it."""
    r, changes = plan.result, dict[str, float]()
    for option in plan.options:
        other = option.result
        more = {
            "max_staleness": option.what == "S" and other.max_staleness > r.max_staleness,
            "rollout_gpus": option.what == "rollout GPUs" and other.rollout_gpus > r.rollout_gpus,
            "active_groups": option.what == "R" and other.active_groups > r.active_groups,
        }
        changes |= dict.fromkeys(
            (name for name, is_more in more.items() if is_more), other.step_time_s / r.step_time_s - 1.0
        )
    return changes


def _memory_lines(m: Memory) -> Iterator[tuple[str, str]]:
    weights, kv, gpu = (f"{size / _GIB:.1f} GiB" for size in (m.weights_bytes, m.kv_bytes, m.gpu_bytes))
    yield "a rollout GPU", f"{weights} of weights a version and {kv} for KV, of {gpu}"
    yield "a training GPU", f"{m.trainer_bytes / _GIB:.1f} GiB of weights, gradients and optimizer state"


def _split(plan: ClusterPlan) -> str:
    r, k = plan.result, plan.parts
    if r.elastic_gpus:
        return f"{count(k * r.elastic_gpus, 'GPU')}, to generate and train in turn"
    return f"{count(k * r.rollout_gpus, 'GPU')} to generate, {k * (r.gpus - r.rollout_gpus):,} to train"


def _options(plan: ClusterPlan) -> Table:
    made = table("How much each choice matters", "choice", "instead", ">step s", ">change", ">mean staleness")
    for option in plan.options:
        r = option.result
        change = f"{r.step_time_s / plan.result.step_time_s - 1.0:+.1%}"
        value, step = _value(option, plan.parts), f"{r.step_time_s:,.1f}"
        made.add_row(option.what, value, step, change, f"{r.staleness_mean:.2f}")
    return made


def _value(option: Option, parts: int) -> str:
    """The value of an option, scaled from a part to the whole cluster."""
    return str(parts * option.result.rollout_gpus) if option.what == "rollout GPUs" else option.value


def as_json(plan: ClusterPlan) -> str:
    """A cluster plan as JSON, with the whole cluster's numbers, for scripts."""
    r, k = plan.result, plan.parts
    fields = {
        "model": plan.recipe.model,
        "gpu": plan.recipe.cluster.gpu,
        "gpus": k * r.gpus,
        "rollout_gpus": k * r.rollout_gpus,
        "elastic_gpus": k * r.elastic_gpus,
        "train_gpus": k * (r.gpus - r.rollout_gpus - r.elastic_gpus),
        "tensor_parallel": r.tensor_parallel,
        "instances": k * r.instances,
        "batch_groups": k * r.batch_groups,
        "group_size": r.group_size,
        "max_staleness": r.max_staleness,
        "active_groups": k * r.active_groups,
        "step_time_s": plan.result.step_time_s,
        "predicted_step_time_s": plan.predicted_step_s,
        "limit_step_time_s": r.limit_step_time_s,
        "tokens_per_s": k * r.tokens_per_s,
        "staleness_mean": r.staleness_mean,
        "bottleneck": bottleneck(r, tried=_tried(plan)),
        "memory": plan.memory,
        "options": [
            {"choice": option.what, "value": _value(option, k), "step_time_s": option.result.step_time_s}
            for option in plan.options
        ],
    }
    return msgspec.json.format(msgspec.json.encode(fields)).decode()
