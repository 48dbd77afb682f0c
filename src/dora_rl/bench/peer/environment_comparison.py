"""One environment class played by TRL's `environment_factory` and by us, its tools quick and slow.

Both train the same model on the same rows; the slow tools take 0.1 to 2 s, drawn alike for both. Then our
other schedules with the slow tools. An episode counts when it has been trained on. Both have the same cores,
TRL as many threads on them as make it faster, and the first steps of both are left out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from dora_rl.bench.peer.peer_comparison import best_threads, peer_speed, require_peer, train_peer
from dora_rl.bench.schedules.forecast import step_s
from dora_rl.bench.whole_run import run_whole
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.record import Record
from dora_rl.observe.report.run_reader import read_run
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup, read_setup

QUICK = "dora_rl.bench.peer.calculators:Calculator"
SLOW = "dora_rl.bench.peer.calculators:SlowCalculator"
_SCHEDULES = {
    "sync": ("control.schedule=sync",),
    "async_ratio 2": ("control.schedule=async_ratio", "control.max_staleness=2"),
    "async_ratio 2, redundant": (
        "control.schedule=async_ratio",
        "control.max_staleness=2",
        "control.redundant_groups=1",
        "control.redundant_members=1",
    ),
    "dora": ("control.schedule=dora",),
}
"""What is compared on the same latencies, by name."""


class EnvironmentRun(Record, frozen=True):
    """One training: how many episodes a second it finished and trained on."""

    name: str
    tools: str
    """`0 s`, or the range of the tools' latency."""
    episodes_per_s: float
    tokens_mean: float
    """Tokens that the policy sampled in an episode: whether both do the same work."""
    threads: str
    staleness_mean: float | None
    rewards: tuple[float, ...]
    """Mean reward of each step."""


class EnvironmentComparison(Record, frozen=True):
    """Every run, TRL's beside ours for each kind of tools."""

    title: str
    runs: tuple[EnvironmentRun, ...]

    def peer_speed(self, tools: str) -> float:
        """Episodes a second of TRL's with these tools."""
        return next(
            run.episodes_per_s for run in self.runs if run.name.startswith("TRL") and run.tools == tools
        )


def compare_environments(
    assignments: Sequence[str], *, steps: int, peer_steps: int, place: Path, tell: Callable[[str], None]
) -> EnvironmentComparison:
    """Train with quick tools by us and by TRL, then with slow ones; these under every schedule."""
    require_peer()
    runs: list[EnvironmentRun] = []
    threads: list[int] = []

    def trained(name: str, tools: str, environment: str, model: str | None) -> Path:
        root = place / f"run{len(runs)}"
        own = (f"episode.options={{environment: '{environment}'}}", *_SCHEDULES[name], *assignments)
        runs.append(_ours(name, tools, _trained(root, steps, model, own), root))
        tell(_line(runs[-1]))
        return root

    def trained_by_peer(tools: str, root: Path) -> None:
        if not threads:
            setup = read_setup(LiveLayout(root=root).setup)
            threads.append(best_threads(root, setup.recipe.batch.trajectories))
        runs.append(_theirs(tools, root, peer_steps, threads[0]))
        tell(_line(runs[-1]))

    first = trained("dora", "0 s", QUICK, None)
    trained_by_peer("0 s", first)
    # All others begin with the model of the first, after its warm start.
    model = str(LiveLayout(root=first).initial_model)
    slow = [trained(name, "0.1 to 2 s", SLOW, model) for name in _SCHEDULES]
    trained_by_peer("0.1 to 2 s", slow[-1])
    setup = read_setup(LiveLayout(root=first).setup)
    return EnvironmentComparison(title=_title(setup, steps, peer_steps), runs=tuple(runs))


def _trained(root: Path, steps: int, model: str | None, assignments: Sequence[str]) -> RunSetup:
    """Train the recipe `tools` with an environment class in the place of its own episode."""
    fixed = (
        f"steps={steps}",
        "episode.function=environment",
        "episode.max_turns=7",
        "episode.max_context_tokens=512",
        "response.max_new_tokens=80",
        "batch.groups=4",
        "devices.kind=cpu",
        "devices.instance_threads=1",
        "devices.trainer_threads=1",
        "evaluation.every=0",
        f"checkpoints.every={steps}",
        "optimizer.learning_rate=1e-4",
        "optimizer.learning_rate_schedule={kind: constant}",
    )
    begin = (f"model={model}", "warm_start.steps=0") if model is not None else ()
    recipe = resolve_recipe("tools", [*fixed, *begin, *assignments])
    with Preparation(recipe, str(root)) as preparation:
        setup = preparation.plan().setup
        run_whole(setup, preparation.finish())
    return setup


def _ours(name: str, tools: str, setup: RunSetup, root: Path) -> EnvironmentRun:
    facts, devices = read_run(root), setup.devices
    return EnvironmentRun(
        name=name,
        tools=tools,
        episodes_per_s=setup.recipe.batch.trajectories
        / step_s(setup.recipe, [step.published_at for step in facts.steps]),
        tokens_mean=fmean(step.mean_tokens for step in facts.steps),
        threads=f"{devices.instances} x {devices.instance_threads} + {devices.trainer_threads}",
        staleness_mean=fmean(step.staleness_mean for step in facts.steps),
        rewards=tuple(step.reward or 0.0 for step in facts.steps),
    )


def _theirs(tools: str, root: Path, steps: int, num_threads: int) -> EnvironmentRun:
    """What TRL does with the set-up of a run of ours."""
    run, setup = train_peer(root, steps, num_threads), read_setup(LiveLayout(root=root).setup)
    return EnvironmentRun(
        name=f"TRL {run.version}",
        tools=tools,
        episodes_per_s=peer_speed(run, setup.recipe.batch.trajectories),
        tokens_mean=fmean(step.tokens for step in run.steps),
        threads=str(run.num_threads),
        staleness_mean=None,
        rewards=tuple(step.reward for step in run.steps),
    )


def _line(run: EnvironmentRun) -> str:
    return f"{run.name}, tools of {run.tools}: {run.episodes_per_s:.2f} episodes a second"


def _title(setup: RunSetup, steps: int, peer_steps: int) -> str:
    batch = setup.recipe.batch
    return (
        f"a calculator's tools, {batch.groups} groups of {batch.group_size} episodes; "
        f"{steps} steps of ours, {peer_steps} of TRL's"
    )
