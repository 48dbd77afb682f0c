"""The objects one control plane is made of, and the time of the input being handled.

Built once by the control plane and handed to its four sides (admission, steps, endings, instances),
which share these objects and nothing else. Emits decisions in the order they must be carried out.
"""

from collections.abc import Iterable

from dora_rl.control.batches import Batches
from dora_rl.control.dispatch import Dispatch
from dora_rl.control.durations import Durations
from dora_rl.control.estimates import Estimates
from dora_rl.control.fleet import Fleet
from dora_rl.control.fleet_changes import FleetChanges
from dora_rl.control.group_rounds import GroupRounds
from dora_rl.control.ledger import Ledger
from dora_rl.control.live_versions import LiveVersions
from dora_rl.control.meters import Meters
from dora_rl.control.pace import Pace
from dora_rl.control.prompt_queue import PromptQueue
from dora_rl.control.role_demand import RoleDemand
from dora_rl.control.row_lengths import RowLengths
from dora_rl.control.schedules import Schedule, make_schedule
from dora_rl.control.target import Target
from dora_rl.control.window import Window
from dora_rl.core.decisions import Decision
from dora_rl.core.recipe import Batch, Control
from dora_rl.core.recipe.episodes import EpisodeSettings


class ControlParts:
    """The objects of one run's control plane, and the decisions of the input being handled."""

    def __init__(
        self,
        control: Control,
        batch: Batch,
        *,
        steps: int,
        estimates: Estimates,
        episode: EpisodeSettings | None,
        frozen: Iterable[int] = (),
    ) -> None:
        self.control = control
        self.episode = episode
        self.batch = batch
        self.steps = steps
        self.now = 0.0
        self.out: list[Decision] = []
        self.schedule = make_schedule(control, batch)
        self.estimates = estimates
        self.meters = Meters()
        self.window = Window(
            batch_groups=batch.groups,
            max_staleness=self.schedule.max_staleness,
            spare=self.schedule.redundant_groups,
            bounds_each=self.schedule.bounds_each,
        )
        self.ledger = Ledger(group_size=batch.group_size)
        self.fleet = Fleet(watermark=control.kv_watermark)
        self.durations = Durations()
        self.rounds = GroupRounds()
        self.target = Target(
            window=self.window,
            fleet=self.fleet,
            durations=self.durations,
            rounds=self.rounds,
            estimates=estimates,
            group_size=batch.group_size,
            freshness_cost=control.freshness_cost,
            fixed=self.schedule.active_groups,
        )
        self.row_lengths = RowLengths()
        self.prompts = PromptQueue(
            most_at_once=_most_at_once(self.schedule, batch), has_environments=episode is not None
        )
        self.role_demand = RoleDemand(frozen, prior_tokens=estimates.lengths.mean())
        self.pace = Pace(self.window, estimates)
        self.batches = Batches(self.window, self.ledger, streams=control.stream)
        self.dispatch = Dispatch(
            self.ledger,
            self.fleet,
            estimates,
            self.meters,
            self.emit,
            queues=control.queue_scheduling,
            kv_reuse=control.kv_reuse,
        )
        self.fleet_changes = FleetChanges(
            self.fleet,
            self.window,
            self.target,
            self.dispatch,
            self.pace,
            self.durations,
            self.role_demand,
            self.meters,
            self.emit,
            control=control,
            group_size=batch.group_size,
        )
        self.versions = LiveVersions(
            self.window,
            self.ledger,
            self.fleet,
            self.dispatch,
            self.emit,
            keeps_window=self.schedule.pins_at_onset,
            frozen=self.role_demand.versions,
        )

    def emit(self, decision: Decision) -> None:
        """Append a decision to those of the input being handled."""
        self.out.append(decision)

    def decided(self) -> list[Decision]:
        """Return the decisions emitted since the last call, in order, and clear them."""
        decisions, self.out = self.out, []
        return decisions


def _most_at_once(schedule: Schedule, batch: Batch) -> int:
    """Most groups one input can let start: all of R, and those after a batch taken at the same moment."""
    target = schedule.active_groups or (schedule.max_staleness + 1) * batch.groups
    return target + batch.groups + schedule.redundant_groups
