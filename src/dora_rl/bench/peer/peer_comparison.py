"""The same training by TRL and by us, one after the other on the same cores."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dora_rl.bench.peer.trl import PeerRun
from dora_rl.bench.schedules.forecast import step_s
from dora_rl.bench.whole_run import run_whole
from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.record import Record
from dora_rl.launch.protocol import Place
from dora_rl.observe.report.run_facts import RunFacts
from dora_rl.observe.report.run_reader import read_run
from dora_rl.prepare.machine import num_cores
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.run_setup import RunSetup

NEEDED = ("trl", "accelerate", "datasets")
LONG_TAIL = (
    "data.train.options={notation: decimal, max_n: 90, sigma: 0.9}",
    "warm_start.steps=300",
    "optimizer.learning_rate=3e-4",
    "cluster.slots=256",
)
"""Answers of up to 263 tokens, most of them short, by a model that knows the task and changes little.

If it changed much, the two would soon do different work.
"""
_SMOOTHED = 3
_WARMUP = 2
_TRIAL_STEPS = 4


class PeerSide(Record, frozen=True):
    """The result of one of the two systems, ours or TRL."""

    name: str
    threads: str
    trajectories_per_s: float
    """Trajectories completed and trained on a second, once warm."""
    rewards: tuple[float, ...]
    """Mean reward of each step."""
    reached_s: float | None
    """Seconds from the first request until the target reward; None if it was not reached."""


class PeerComparison(Record, frozen=True):
    """Our run beside TRL's, and what the comparison was about."""

    title: str
    target: float
    """Mean reward over three steps that both are timed to."""
    ours: PeerSide
    theirs: PeerSide

    @property
    def speed_ratio(self) -> float:
        """Ratio of trajectories a second, ours over TRL's."""
        return self.ours.trajectories_per_s / self.theirs.trajectories_per_s

    @property
    def time_ratio(self) -> float | None:
        """Ratio of seconds to the same reward, TRL's over ours."""
        ours, theirs = self.ours.reached_s, self.theirs.reached_s
        return theirs / ours if ours and theirs else None


def require_peer() -> None:
    """Raise a UserError that says how to install what TRL needs and is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the comparison needs {' and '.join(missing)}, not installed here",
            hint="pip install trl accelerate datasets",
        )


def compare_with_peer(
    recipe: str | None,
    assignments: Sequence[str],
    *,
    steps: int,
    peer_steps: int,
    target: float | None,
    place: Path,
) -> PeerComparison:
    """Train with our system, then with TRL on the same model, rows and settings, and compare."""
    require_peer()
    if recipe is None:
        recipe, assignments = "countdown", (*LONG_TAIL, *assignments)
    fixed = (
        f"steps={steps}",
        "devices.kind=cpu",
        "evaluation.every=0",
        f"checkpoints.every={steps}",
        # The two sides mean different things by the others.
        "optimizer.learning_rate_schedule.kind=constant",
    )
    resolved = resolve_recipe(recipe, [*assignments, *fixed])
    with Preparation(resolved, str(place / "run")) as preparation:
        setup = preparation.plan().setup
        run_whole(setup, preparation.finish())
    facts = read_run(place / "run")
    theirs = train_peer(
        place / "run", peer_steps, best_threads(place / "run", setup.recipe.batch.trajectories)
    )
    ours_at, ours_rewards = _curve(facts)
    theirs_at, theirs_rewards = [step.at for step in theirs.steps], [step.reward for step in theirs.steps]
    wanted = target if target is not None else min(_best(ours_rewards), _best(theirs_rewards))
    devices = setup.devices
    return PeerComparison(
        title=_title(setup, steps, peer_steps),
        target=wanted,
        ours=PeerSide(
            name=f"dora, {setup.recipe.control.schedule}",
            threads=f"{devices.instances} x {devices.instance_threads} + {devices.trainer_threads}",
            trajectories_per_s=setup.recipe.batch.trajectories
            / step_s(setup.recipe, [step.published_at for step in facts.steps]),
            rewards=tuple(ours_rewards),
            reached_s=reached_s(ours_at, ours_rewards, wanted),
        ),
        theirs=PeerSide(
            name=f"TRL {theirs.version}",
            threads=str(theirs.num_threads),
            trajectories_per_s=peer_speed(theirs, setup.recipe.batch.trajectories),
            rewards=tuple(theirs_rewards),
            reached_s=reached_s(theirs_at, theirs_rewards, wanted),
        ),
    )


def reached_s(at: Sequence[float], rewards: Sequence[float], target: float) -> float | None:
    """Seconds at which the mean reward of the last steps first reached the target; None if never."""
    for number in range(len(rewards)):
        if _smoothed(rewards, number) >= target:
            return at[number]
    return None


def _best(rewards: Sequence[float]) -> float:
    return max(_smoothed(rewards, number) for number in range(len(rewards)))


def _smoothed(rewards: Sequence[float], number: int) -> float:
    last = rewards[max(0, number - _SMOOTHED + 1) : number + 1]
    return sum(last) / len(last)


def _curve(facts: RunFacts) -> tuple[list[float], list[float]]:
    """Times of our steps, from the first request on, and their rewards."""
    began = min(load.at for loads in facts.timeline.loads.values() for load in loads)
    steps = facts.steps
    return [step.published_at - began for step in steps], [step.reward or 0.0 for step in steps]


def peer_speed(run: PeerRun, trajectories: int) -> float:
    """Trajectories a second of TRL's, once warm."""
    first = min(_WARMUP, len(run.steps) - 1)
    began = run.steps[first - 1].at if first else 0.0
    return trajectories * (len(run.steps) - first) / (run.steps[-1].at - began)


def best_threads(root: Path, trajectories: int) -> int:
    """The number of threads, one or every core, with which TRL is faster over a few steps."""
    speeds = {
        threads: peer_speed(train_peer(root, _TRIAL_STEPS, threads), trajectories)
        for threads in {1, num_cores()}
    }
    return max(speeds, key=lambda threads: speeds[threads])


def train_peer(root: Path, steps: int, num_threads: int) -> PeerRun:
    """Train the run under `root` again with TRL, in a process of its own, as a user would start it."""
    output, log = root / "peer.json", root / "peer.log"
    command = [
        sys.executable,
        "-m",
        "dora_rl.bench.peer.trl",
        str(root),
        str(steps),
        str(output),
    ]
    environment = {**os.environ, **Place(cpus=num_threads).thread_limits}
    with log.open("wb") as said:
        ended = subprocess.run(command, stdout=said, stderr=said, env=environment, check=False)
    if ended.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise DoraError(f"training with TRL ended with {ended.returncode}: {last}")
    return msgspec.json.decode(output.read_bytes(), type=PeerRun)


def _title(setup: RunSetup, steps: int, peer_steps: int) -> str:
    batch = setup.recipe.batch
    return (
        f"{setup.data.train.name}, {batch.groups} groups of {batch.group_size}, up to "
        f"{setup.max_new_tokens} tokens; {steps} steps of ours, {peer_steps} of TRL's"
    )
