"""Live runs of given recipes, several at a time, each in a process of its own.

Owns how they share a machine and what is kept of each; knows nothing of what is compared.
"""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

from dora_rl.bench.schedules.forecast import step_s
from dora_rl.core.errors import DoraError
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.observe.report.run_facts import RunFacts
from dora_rl.observe.report.run_reader import read_run
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.live_run import run_live


class LiveTrial(Record, frozen=True, gc=True):
    """A recipe to run, and the directory it runs in."""

    name: str
    recipe: Recipe
    directory: str
    keeps_run: bool = False


class TrialRun(Record, frozen=True):
    """What a live run learned, how fast and how fresh."""

    rewards: tuple[float, ...]
    """Mean reward of each step's batch."""
    published_s: tuple[float, ...]
    """Seconds of each step's publish, from the first one on: what precedes it is loading and compiling."""
    held_out: tuple[tuple[int, float], ...]
    """Reward of held-out rows by version."""
    step_s: float
    staleness_mean: float
    """Mean over the steps in the middle of the run; of a short run, over all."""
    staleness_least: float | None
    staleness_max: int
    idle_versions: int
    """Versions that started no group."""
    clip_share: float
    """Share of tokens whose ratio was held at a bound, over all steps."""
    policy_kl: float
    """Mean KL of the policy in training from the one that generated, over all steps."""


def run_trials(
    trials: Sequence[LiveTrial], *, at_once: int, tell: Callable[[str], None]
) -> dict[str, TrialRun | None]:
    """Run all of them, the first ones first, and return what each gave; None where one could not go on.

    An interrupt ends the runs that are under way, and what is done by then is returned.
    """
    done: dict[str, TrialRun | None] = {}
    with ProcessPoolExecutor(min(at_once, len(trials)), get_context("spawn")) as pool:
        names = {pool.submit(run_trial, trial): trial.name for trial in trials}
        try:
            for future in as_completed(names):
                name = names[future]
                try:
                    done[name] = future.result()
                except DoraError as error:
                    # One that fails must not cost the hours of the others.
                    done[name] = None
                    tell(f"{len(done)}/{len(trials)} {name} FAILED: {error}")
                else:
                    tell(f"{len(done)}/{len(trials)} {name}: {_line(future.result())}")
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt) or not any(done.values()):
                raise
            tell(f"interrupted: {len(done)} of {len(trials)} runs are compared")
    return done


def run_trial(trial: LiveTrial) -> TrialRun:
    """Run one trial to its end, and keep of it what is compared."""
    with Preparation(trial.recipe, trial.directory) as preparation:
        setup = preparation.plan().setup
        run_live(setup, preparation.finish())
    run = _measured(read_run(Path(trial.directory)))
    if not trial.keeps_run:
        shutil.rmtree(trial.directory)
    return run


def _measured(facts: RunFacts) -> TrialRun:
    published = [step.published_at for step in facts.steps]
    return TrialRun(
        rewards=tuple(step.reward or 0.0 for step in facts.steps),
        published_s=tuple(at - published[0] for at in published),
        held_out=tuple((each.version, each.reward) for each in facts.evaluations),
        step_s=step_s(facts.recipe, published),
        staleness_mean=facts.staleness_mean,
        staleness_least=facts.staleness_least,
        staleness_max=max(step.staleness_max for step in facts.steps),
        idle_versions=sum(facts.state.skipped.values()),
        clip_share=_metric(facts, "clip_ratio/low_mean") + _metric(facts, "clip_ratio/high_mean"),
        policy_kl=_metric(facts, "policy_kl"),
    )


def _metric(facts: RunFacts, name: str) -> float:
    """Mean of a metric over the steps that have it."""
    values = [value for row in facts.metrics if isinstance(value := row.get(name), int | float)]
    return fmean(values) if values else 0.0


def _line(run: TrialRun) -> str:
    held_out = f", held out {run.held_out[0][1]:.3f} to {run.held_out[-1][1]:.3f}" if run.held_out else ""
    return (
        f"reward {fmean(run.rewards):.3f} in the mean{held_out}, {run.step_s:.3f} s a step, "
        f"staleness {run.staleness_mean:.2f}"
    )
