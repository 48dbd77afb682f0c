"""What a user should be told about the data of a step: said once a kind, and counted in the metrics."""

import logging
import math
from collections.abc import Sequence

from dora_rl.core.recipe.trainer_config import GapConfig
from dora_rl.trainer.train_batch import TrainGroup

log = logging.getLogger("dora_rl.trainer")

_MEMORY = 0.9
"""Share of the running level that a step leaves as it was."""
_CORRECTION = "; set algorithm.correction.level=token to weigh tokens by the ratio of both"


class Watch:
    """Remembers the level of the gap between engine and trainer, and what has been said."""

    def __init__(self, config: GapConfig, *, is_corrected: bool = False) -> None:
        self._config = config
        self._way_out = "" if is_corrected else _CORRECTION
        self.level: float | None = None
        self._said: set[str] = set()

    def look(self, metrics: dict[str, float], groups: Sequence[TrainGroup]) -> dict[str, float]:
        """Flags of this step, as metrics; what is new is also logged as a warning."""
        return {
            "warnings/logprob_gap": float(self._gap(metrics.get("logprob_gap/mean"))),
            "warnings/cut_distribution": float(self._cut(groups)),
        }

    def _gap(self, gap: float | None) -> bool:
        if gap is None:
            return False
        if not math.isfinite(gap):
            # It must not become the level: nothing is above a level that is no number.
            self._say("number", "recorded or recomputed logprobs are no numbers")
            return True
        level = self.level
        self.level = gap if level is None else _MEMORY * level + (1 - _MEMORY) * gap
        if gap > self._config.max_mean:
            self._say(
                "gap",
                f"recorded and recomputed logprobs differ by {gap:.3g} nats a token on average: engine and "
                "trainer do not compute the same distribution" + self._way_out,
            )
            return True
        # A level of nearly nothing is rounding; growth against it says nothing.
        if level is not None and gap > self._config.max_growth * max(level, self._config.max_mean / 100):
            self._say(
                "growth", f"the gap of recorded and recomputed logprobs grew from {level:.3g} to {gap:.3g}"
            )
            return True
        return False

    def _cut(self, groups: Sequence[TrainGroup]) -> bool:
        if not any(member.is_cut for group in groups for member in group.members):
            return False
        self._say(
            "cut",
            "training data was sampled from a distribution cut by top-k, top-p or min-p: its logprobs are "
            "over all words, so importance ratios are off; sample with temperature alone",
        )
        return True

    def _say(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning(message)
