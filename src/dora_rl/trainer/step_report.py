"""What a step reports: a flat dict of numbers, under the names this field uses.

Means are per policy token unless the name says otherwise. `staleness/<k>/...` holds the same for
tokens of staleness k alone.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from dora_rl.algorithms.aggregation import BatchCounts
from dora_rl.trainer.loss_meters import OWN, Totals
from dora_rl.trainer.optimizer import Update
from dora_rl.trainer.protocol import Metrics
from dora_rl.trainer.train_batch import TrainGroup

_NAMES = {
    "ratio": "ratio_mean",
    "clipped_low": "clip_ratio/low_mean",
    "clipped_high": "clip_ratio/high_mean",
    "policy_kl": "policy_kl",
    "entropy": "entropy",
    "kl": "kl",
}


@dataclass(slots=True, kw_only=True)
class StepReport:
    """Gathers the metrics of a step from its mini-batches."""

    started_s: float
    num_micro_batches: int = 0
    num_empty: int = 0
    masked: dict[str, int] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    counts: list[BatchCounts] = field(default_factory=list)

    def add(self, totals: Totals, update: Update, scale: float, counts: BatchCounts) -> None:
        """Take in a mini-batch that is over."""
        self.totals.append(totals)
        self.updates.append(update)
        self.losses.append((scale * totals.total("loss"), scale * totals.total("value_loss")))
        self.counts.append(counts)

    def add_empty(self, totals: Totals) -> None:
        """Take in a mini-batch without a token to train on, for which no update was made."""
        self.totals.append(totals)
        self.num_empty += 1

    def metrics(self, groups: Sequence[TrainGroup], version: int, learning_rate: float) -> Metrics:
        """All metrics of the step, by name; `learning_rate` is reported where no update had one."""
        return {
            **{name: value for of in OF_GROUPS for name, value in of(groups, version).items()},
            **self._of_updates(learning_rate),
            **self._of_tokens(),
            **self._of_gap(),
            **self._of_routers(),
            **{reason.replace(": ", "/").replace(" ", "_"): float(n) for reason, n in self.masked.items()},
            "num_micro_batches": float(self.num_micro_batches),
            "step_time": time.perf_counter() - self.started_s,
        }

    def _of_updates(self, learning_rate: float) -> Metrics:
        """Metrics of the updates; means are over those that were made, and no number where none was."""
        made = [number for number, update in enumerate(self.updates) if not update.is_skipped]
        value_losses = [self.losses[i][1] for i in made]
        metrics = {
            "loss": _mean(self.losses[i][0] for i in made),
            "grad_norm": _mean(self.updates[i].grad_norm for i in made),
            "learning_rate": self.updates[-1].learning_rate if self.updates else learning_rate,
            "updates/made": float(len(made)),
            "updates/skipped": float(len(self.updates) - len(made)),
            "updates/empty": float(self.num_empty),
            "trained/tokens": float(sum(counts.num_tokens for counts in self.counts)),
            "trained/trajectories": float(sum(counts.num_trajectories for counts in self.counts)),
        }
        return metrics | ({"value_loss": fmean(value_losses)} if any(value_losses) else {})

    def _of_tokens(self) -> Metrics:
        whole = _joined(self.totals)
        metrics = {name: whole.mean(quantity) for quantity, name in _NAMES.items()}
        metrics |= {name: whole.mean(name) for name in whole.sums if name.startswith(OWN)}
        for staleness, count in enumerate(whole.sums["tokens"]):
            if count:
                prefix = f"staleness/{staleness}"
                metrics[f"{prefix}/tokens"] = count
                clipped = whole.sums["clipped_low"][staleness] + whole.sums["clipped_high"][staleness]
                metrics[f"{prefix}/clip_fraction"] = clipped / count
                for quantity in ("ratio", "policy_kl", "entropy"):
                    metrics[f"{prefix}/{_NAMES[quantity]}"] = whole.sums[quantity][staleness] / count
        return metrics

    def _of_gap(self) -> Metrics:
        """Metrics of the gap between engine and trainer logprobs, where the weights are at hand."""
        whole = _joined(self.totals)
        num_compared = whole.total("compared")
        if not num_compared:
            return {}
        return {
            "logprob_gap/mean": whole.total("gap") / num_compared,
            "logprob_gap/max": whole.max_gap,
            "correction/out_fraction": whole.total("corrected") / num_compared,
        }

    def _of_routers(self) -> Metrics:
        """Metrics of a mixture of experts; none for other models."""
        whole = _joined(self.totals)
        if not whole.total("imbalance"):
            return {}
        return {"router/imbalance": whole.mean("imbalance"), "router/replayed": whole.mean("replayed")}


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return fmean(known) if known else math.nan


def _joined(totals: Sequence[Totals]) -> Totals:
    sums = {
        name: [sum(values) for values in zip(*(each.sums[name] for each in totals), strict=True)]
        for name in totals[0].sums
    }
    return Totals(sums=sums, max_gap=max(each.max_gap for each in totals))


def _of_rewards(groups: Sequence[TrainGroup], version: int) -> Metrics:
    by_group = [[m.reward for m in group.members if m.is_scored] for group in groups]
    rewards = [reward for own in by_group for reward in own]
    if not rewards:
        return {"reward": math.nan, "reward_std": math.nan, "frac_reward_zero_std": 1.0}
    equal = [len(set(own)) <= 1 for own in by_group]
    return {
        "reward": fmean(rewards),
        "reward_std": fmean(pstdev(own) for own in by_group if own),
        "frac_reward_zero_std": fmean(equal),
        "groups_of_one": float(sum(len(group.members) == 1 for group in groups)),
    }


def _of_completions(groups: Sequence[TrainGroup], version: int) -> Metrics:
    members = [member for group in groups for member in group.members]
    lengths = [member.num_policy_tokens for member in members]
    return {
        "completions/mean_length": fmean(lengths),
        "completions/max_length": float(max(lengths)),
        "completions/min_length": float(min(lengths)),
        "completions/clipped_ratio": fmean(member.is_truncated for member in members),
        "num_tokens": float(sum(member.num_tokens for member in members)),
    }


def _of_staleness(groups: Sequence[TrainGroup], version: int) -> Metrics:
    staleness = [version - member.version for group in groups for member in group.members]
    return {"staleness/mean": fmean(staleness), "staleness/max": float(max(staleness))}


OF_GROUPS = (_of_rewards, _of_completions, _of_staleness)
"""Metrics that need only a step's groups and the version it trains: a further one is a function and its name
here."""
