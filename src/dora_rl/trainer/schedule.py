"""Learning-rate schedules: the share of the peak rate at each update. Pure functions, torch-free."""

import math

from dora_rl.core.recipe.trainer_config import ScheduleConfig


def share_of_peak(schedule: ScheduleConfig, update: int) -> float:
    """The learning rate after `update` finished updates, as a share of the peak rate."""
    if update < schedule.warmup_updates:
        return (update + 1) / (schedule.warmup_updates + 1)
    if schedule.kind == "constant" or schedule.total_updates is None:
        return 1.0
    progress = (update - schedule.warmup_updates) / (schedule.total_updates - schedule.warmup_updates)
    left = 1 - min(progress, 1.0)
    if schedule.kind == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return schedule.floor + (1 - schedule.floor) * left
