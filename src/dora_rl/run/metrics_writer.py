"""Metrics of a run: one line a step, of what the trainer measured and how asynchronous the run was."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Decision, Take
from dora_rl.core.inputs import Input, Published
from dora_rl.core.reward_means import mean_by_function
from dora_rl.run.messages import StepPublished
from dora_rl.run.rewards.judge import Judgement
from dora_rl.store.durable import write_atomically
from dora_rl.store.journal_records import FinishedGroup, StepMetrics

Values = dict[str, float | None]

_decode_line = msgspec.json.Decoder(dict[str, Any]).decode

_MOST_SOURCES = 32
"""Most tables of one batch that have metrics of their own: a column with more values says something else."""


class MetricsWriter:
    """The metrics of a run: `metrics.jsonl`, and TensorBoard files where that is installed."""

    def __init__(
        self,
        path: Path,
        board: Path,
        plane: ControlPlane,
        *,
        newest_version: int = 0,
        journalled: Mapping[int, Values] | None = None,
        data_source: Callable[[int], Any] = lambda row: None,
    ) -> None:
        """`journalled`: what the journal has of each step, which a crash may have kept from the file.

        `data_source` says which of several tables a row is of; None where it does not matter.
        """
        lines = _reconciled(path, newest_version, journalled or {})
        self._file = path.open("ab")
        self._board = _board(board)
        self._plane = plane
        self._data_source = data_source
        self._marks = self._counters()
        self._last_at = max((line["at"] for line in lines if "step_time" in line), default=0.0)
        self._evaluated = {line["step"] for line in lines if "eval/prompts" in line}
        self._taken: dict[int, Values] = {}
        """Metrics of each batch taken and not published yet, by batch: the next may be taken before that."""
        self._num_failures = 0
        self._logged: dict[str, list[float]] = {}
        """Values that reward functions logged since the last step, by name."""
        self._unwritten: list[StepMetrics] = []
        """Steps whose line is written once the journal has it."""
        self.last: Values = {}

    def judged(self, judgement: Judgement) -> None:
        """Count a judged trajectory's failures, and what was logged about it unless it was evaluated."""
        self._num_failures += len(judgement.failures)
        group = self._plane.ledger.group_of(judgement.trajectory)
        if group is None or not group.is_evaluation:
            for metric in judgement.metrics:
                self._logged.setdefault(metric.name, []).append(metric.value)

    def took(self, take: Take, groups: Sequence[FinishedGroup]) -> None:
        """Note the rewards and the staleness of a batch that was taken."""
        means = mean_by_function(member.values for group in groups for member in group.members)
        values: Values = {f"rewards/{name}/mean": mean for name, mean in means.items()}
        values |= self._by_source(groups)
        for staleness in range(max(take.staleness) + 1):
            values[f"staleness/{staleness}/groups"] = float(take.staleness.count(staleness))
        self._taken[take.batch] = values

    def _by_source(self, groups: Sequence[FinishedGroup]) -> Values:
        """Groups and mean reward of each table that rows of the batch are of, where they say so."""
        rewards: dict[str, list[float]] = {}
        numbers: Counter[str] = Counter()
        for group in groups:
            source = self._data_source(group.members[0].key.row) if group.members else None
            if isinstance(source, str):
                numbers[source] += 1
                found = (member.reward for member in group.members)
                rewards.setdefault(source, []).extend(reward for reward in found if reward is not None)
        if len(numbers) > _MOST_SOURCES:
            return {}
        means = {source: fmean(given) if given else None for source, given in rewards.items()}
        return {f"data_source/{source}/reward": mean for source, mean in means.items()} | {
            f"data_source/{source}/groups": float(number) for source, number in numbers.items()
        }

    def published(self, message: StepPublished, at: float) -> StepMetrics:
        """The metrics of a published step, for the journal; `watch` writes them once that has them."""
        counters = self._counters()
        since = {name: value - self._marks[name] for name, value in counters.items()}
        window = self._plane.window
        active = {f"active_groups/{version}": float(window.active(version)) for version in window.live()}
        values: Values = {
            **message.metrics,
            **self._taken.pop(message.batch, {}),
            **since,
            **active,
            "step_time": at - self._last_at,
            "train_time": message.train_s,
            "publish_time": message.publish_s,
            "active_groups": float(window.num_active),
            "target_groups": float(self._plane.target.groups),
            "finished_groups": float(window.num_finished),
            "reward_failures": float(self._num_failures),
        }
        # A name that the run uses itself stays the run's.
        for name, logged in self._logged.items():
            taken = name in values or name in ("step", "at")
            values[f"logged/{name}" if taken else name] = fmean(logged)
        self._marks, self._last_at = counters, at
        self._num_failures, self._logged = 0, {}
        self.last = values
        self._unwritten.append(StepMetrics(version=message.batch + 1, values={"at": at, **values}))
        return self._unwritten[-1]

    def watch(self, told: Input, decisions: list[Decision]) -> None:
        """Write the line of a step that is in the journal now."""
        if isinstance(told, Published):
            for step in self._unwritten:
                self.write({"step": step.version, **step.values}, step=step.version)
            self._unwritten.clear()

    def evaluated(
        self,
        version: int,
        at: float,
        rewards: list[float],
        lengths: list[int],
        values_by_function: Sequence[Mapping[str, float | None]] = (),
        *,
        samples: int = 1,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """Write the line of a complete evaluation, unless it was written before a crash."""
        if version in self._evaluated:
            return
        self._evaluated.add(version)
        values: Values = {
            "eval/reward": fmean(rewards) if rewards else None,
            "eval/mean_length": fmean(lengths) if lengths else None,
            "eval/prompts": float(len(lengths) // samples),
            **{f"eval/{name}": rate for name, rate in (rates or {}).items()},
            **{
                f"eval/rewards/{name}/mean": mean
                for name, mean in mean_by_function(values_by_function).items()
            },
        }
        self.write({"step": version, "at": at, **values}, step=version)

    def write(self, line: dict[str, Any], *, step: int) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        if self._board is not None:
            for name, value in line.items():
                if name not in ("step", "at") and value is not None:
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _counters(self) -> dict[str, float]:
        meters = self._plane.meters
        return {
            "trainer_starved_s": meters.starved_s,
            "window_stall_s": meters.window_stall_s,
            "migrations": float(meters.migrations),
            "kv_bytes_moved": float(meters.kv_bytes_moved),
            "version_changes": float(meters.version_changes),
            "instance_losses": float(meters.instance_losses),
            "restarted_trajectories": float(meters.restarted_trajectories),
            "closed_trajectories": float(sum(self._plane.ledger.outcomes.values())),
        }


def _reconciled(path: Path, newest_version: int, journalled: Mapping[int, Values]) -> list[dict[str, Any]]:
    """Bring the file in line with the journal, and return its lines.

    A step's line is the journal's; of the others those are kept that are whole and of versions that are
    published.
    """
    kept: dict[bytes, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            read = _decode_line(line) if line.endswith(b"\n") else {}
            is_journalled = read["step"] in journalled and "eval/prompts" not in read
            if read["step"] <= newest_version and not is_journalled:
                kept[line] = {**read, "at": float(read["at"])}
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
            continue
    steps = [{"step": step, **values} for step, values in journalled.items()]
    lines = sorted([*kept.values(), *steps], key=lambda line: float(line.get("at") or 0.0))
    if path.exists() or lines:
        write_atomically(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return lines


def _board(directory: Path) -> Any:
    try:
        from tensorboard.summary import Writer
    except ImportError:
        return None
    return Writer(str(directory))
