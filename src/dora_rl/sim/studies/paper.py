"""Study `paper`: the table of the DORA paper (arXiv 2604.26256), ours beside it.

One calibration for both sizes. One cell cannot fit: one_step_off at 128 GPUs, derived as 840 s, lies below
the 886 s that the longest trajectory alone takes in the paper's own synchronous row, and one_step_off waits
for the longest of each batch.
"""

from collections.abc import Sequence

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.sim.run import Result
from dora_rl.sim.setup import complete, resolve

SIZES = (64, 128)
SCHEDULES = ("sync", "one_step_off", "partial", "dora_onset", "dora")


class Shown(Record, frozen=True):
    """A run whose timeline is drawn: so many steps, from the first with a full pipeline."""

    steps: int
    first_step: int


SHOWN = {
    "sync": Shown(steps=3, first_step=1),
    "dora_onset": Shown(steps=10, first_step=5),
    "dora": Shown(steps=13, first_step=5),
}


class Published(Record, frozen=True):
    """One cell of the paper's table."""

    step_s: float
    tokens_per_s: float
    rollout_only: float | None = None
    is_reachable: bool = True


PUBLISHED = {
    ("sync", 64): Published(step_s=22.91 * 60, tokens_per_s=14_143, rollout_only=0.65),
    ("sync", 128): Published(step_s=20.23 * 60, tokens_per_s=16_070, rollout_only=0.73),
    ("one_step_off", 64): Published(step_s=22.94 * 60, tokens_per_s=14_141, rollout_only=0.33),
    ("one_step_off", 128): Published(step_s=14.0 * 60, tokens_per_s=23_290, is_reachable=False),
    ("partial", 64): Published(step_s=17.38 * 60, tokens_per_s=19_872, rollout_only=0.46),
    ("partial", 128): Published(step_s=13.95 * 60, tokens_per_s=30_683),
    ("dora_onset", 64): Published(step_s=14.67 * 60, tokens_per_s=23_327, rollout_only=0.12),
    ("dora_onset", 128): Published(step_s=10.46 * 60, tokens_per_s=34_135, rollout_only=0.24),
}
"""The paper's DORA starts new prompts only at the onset of a step: our `dora_onset`."""


class Row(Record, frozen=True):
    """One schedule on one size."""

    result: Result
    sync_step_s: float
    published: Published | None = None

    @property
    def deviation(self) -> float | None:
        """How far our step time is from the paper's."""
        return self.result.step_time_s / self.published.step_s - 1.0 if self.published else None

    @property
    def speed_up(self) -> float:
        return self.sync_step_s / self.result.step_time_s


def recipes(*, steps: int, seed: int) -> list[Recipe]:
    return [_recipe(schedule, gpus, steps, seed) for gpus in SIZES for schedule in SCHEDULES]


def shown_recipes(*, seed: int) -> list[Recipe]:
    """The runs whose timelines are drawn, at the smaller size: its instances are few enough to tell apart."""
    return [_recipe(schedule, SIZES[0], shown.steps, seed) for schedule, shown in SHOWN.items()]


def rows(results: Sequence[Result]) -> list[Row]:
    sync_s = {result.gpus: result.step_time_s for result in results if result.schedule == "sync"}
    return [
        Row(
            result=result,
            sync_step_s=sync_s[result.gpus],
            published=PUBLISHED.get((result.schedule, result.gpus)),
        )
        for result in results
    ]


def _recipe(schedule: str, gpus: int, steps: int, seed: int) -> Recipe:
    asked = [f"control.schedule={schedule}", f"steps={steps}", f"seed={seed}"]
    return complete(resolve(preset=f"paper-{gpus}", assignments=asked))
