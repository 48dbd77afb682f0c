"""The step time that the simulator predicts for a live run, given the costs and lengths of another one.

The control plane is the live one: the same set-up, rows and estimates. The world around it is simulated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from dora_rl.bench.schedules.costs import MeasuredCosts
from dora_rl.bench.schedules.spans import LogFacts, StreamName
from dora_rl.control.schedules import make_schedule
from dora_rl.core.recipe import ImaginedTask, Recipe
from dora_rl.core.record import Record
from dora_rl.costs.rollout import RolloutCost
from dora_rl.costs.train_cost import TrainCost
from dora_rl.run.open_run import make_plane
from dora_rl.run.prompt_table import PromptLengths, PromptTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import read_setup
from dora_rl.sim.feed import SimulatedPromptFeed
from dora_rl.sim.futures import Futures
from dora_rl.sim.simulated_engine import SimulatedEngine
from dora_rl.sim.simulated_run import measured_steps
from dora_rl.sim.simulated_trainer import SimulatedTrainer
from dora_rl.sim.truth import Truth
from dora_rl.sim.world import World

_LEAST_KV_SHARE = 1e-6
"""Least growth of a decode step a token of KV, as a share: the simulator's closed form needs some."""
_LOAD_BESIDE = 2.0
"""Factor of a load's time beside decoding, which shares its core; a synchronous run loads alone."""
_GPU_VERSION_SHARE = 0.45
"""Share of a round that each further version adds on an H200, as measured (`docs/log.md`)."""


class MeasuredRollout(Record, frozen=True):
    """Measured costs in place of a RolloutCost, for a simulated instance."""

    costs: MeasuredCosts
    version_share: float = 1.0
    """Share of a round's cost that each version after the first adds: on a GPU passes overlap."""
    load_factor: float = 1.0
    """Factor by which loading a version takes longer than was measured."""

    @property
    def kv_read_s(self) -> float:
        return max(self.costs.kv_token_s, _LEAST_KV_SHARE * (self.costs.round_s + self.costs.row_s))

    def pass_s(self, batch: float) -> float:
        return self.costs.round_s + batch * self.costs.row_s

    def floor_s(self, num_versions: int) -> float:
        return 0.0

    def overhead_s(self, num_versions: int) -> float:
        """Seconds, negative, that overlapping passes save: a pass is counted for each version."""
        return -(1.0 - self.version_share) * (max(1, num_versions) - 1) * self.costs.round_s

    def prefill_s(self, tokens: float) -> float:
        """Seconds of a prefill, a token costing what one more request in a decode round costs."""
        return self.costs.start_s + tokens * self.costs.row_s

    def load_s(self, versions_apart: int) -> float:
        return self.load_factor * self.costs.load_s

    def kv_bytes(self, tokens: float) -> int:
        return 0

    def move_s(self, tokens: float, *, same_node: bool) -> float:
        return 0.0

    def host_s(self, tokens: float) -> float:
        return 0.0


class MeasuredTraining(Record, frozen=True):
    """Measured costs in place of a TrainCost, for the simulated trainer."""

    costs: MeasuredCosts

    @property
    def fixed_s(self) -> float:
        return self.costs.train_fixed_s

    def compute_s(self, tokens: float, gpus: int) -> float:
        return tokens * self.costs.train_token_s

    def publish_s(self, gpus: int) -> float:
        return self.costs.publish_s


class RecordedLengths(Truth):
    """Response lengths as recorded in a run; where it has none, those of some of its last ones."""

    def __init__(
        self, task: ImaginedTask, seed: int, lengths: Mapping[StreamName, int], *, num_last: int
    ) -> None:
        super().__init__(task, seed)
        self._recorded = lengths
        self._last = list(lengths.values())[-num_last:]

    def response_tokens(self, epoch: int, row: int, member: int, attempt: int) -> int:
        known = self._recorded.get((epoch, row, member, attempt))
        return known if known is not None else self._last[(31 * row + member) % len(self._last)]


def predicted_step_s(
    run: Path, *, costs: MeasuredCosts, lengths: Mapping[StreamName, int], facts: LogFacts
) -> float:
    """Predicted seconds of a step of the run in this directory; `facts` give its instances' sizes."""
    setup = read_setup(LiveLayout(root=run).setup)
    recipe = _simulated(setup.recipe, costs)
    truth = RecordedLengths(recipe.task, recipe.seed, lengths, num_last=setup.recipe.batch.trajectories)
    is_on_cpu = setup.devices.instance_device == "cpu"
    decodes_meanwhile = make_schedule(setup.recipe.control, setup.recipe.batch).max_staleness > 0
    measured = MeasuredRollout(
        costs=costs,
        version_share=1.0 if is_on_cpu else _GPU_VERSION_SHARE,
        load_factor=_LOAD_BESIDE if is_on_cpu and decodes_meanwhile else 1.0,
    )
    rollout = cast(RolloutCost, measured)
    engines = [SimulatedEngine(number, spec, rollout, 0, 0.0) for number, spec in facts.specs.items()]
    is_elastic = setup.devices.is_elastic
    trainer = SimulatedTrainer(
        cast(TrainCost, MeasuredTraining(costs=costs)), gpus=0 if is_elastic else 1, switch_s=0.0
    )
    plane = make_plane(setup)
    feed = SimulatedPromptFeed(recipe, PromptLengths(PromptTable.read(LiveLayout(root=run).prompts)), plane)
    world = World(recipe, plane, engines, trainer, Futures(recipe, truth), truth, feed)
    world.run()
    return step_s(recipe, world.publishes)


def step_s(recipe: Recipe, published_at: list[float]) -> float:
    """Mean seconds of the steps between filling the pipeline and its running dry."""
    first, last = measured_steps(recipe)
    begin = published_at[first - 1] if first else 0.0
    return (published_at[last - 1] - begin) / (last - first)


def _simulated(recipe: Recipe, costs: MeasuredCosts) -> Recipe:
    settings = replace(recipe.simulation, costs=replace(recipe.simulation.costs, switch_s=costs.switch_s))
    return replace(recipe, task=replace(recipe.task, score_s=costs.score_s), simulation=settings)
