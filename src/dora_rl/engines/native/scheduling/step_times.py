"""How the seconds of an engine's steps divide: decoding, computing prompts, computing again, copying KV.

One step may do all of them. What it takes beyond a step that only decodes as many rows is shared by the
number of tokens that are computed for the first time, computed again and copied. Time is an argument.
"""

from collections.abc import Sequence

from dora_rl.engines.native.scheduling.step_plan import Plan

_FORGETS = 0.02
"""How much less every step weighs than the one after it."""

_MOST_ROWS = 1e6


class StepTimes:
    """Adds up the seconds of steps that were no decoding; told of every step."""

    def __init__(self, block_size: int, *, shares_passes: bool = False) -> None:
        """`shares_passes`: rows of several versions run in one pass."""
        self._block_size = block_size
        self._shares_passes = shares_passes
        self.stalls = {"prefill_s": 0.0, "recompute_s": 0.0, "kv_moves_s": 0.0}
        """Seconds by what they went to."""
        self._decoding = DecodeTimes()

    @property
    def figures(self) -> dict[str, float]:
        """All that is known, by its name in EngineLoad."""
        return {**self.stalls, "pass_rows": self.pass_rows}

    @property
    def pass_rows(self) -> float:
        """Number of rows whose decoding takes as long as a pass by itself; 0 where versions share one."""
        if self._shares_passes:
            return 0.0
        base_s, row_s = self._decoding.line
        return min(base_s / row_s, _MOST_ROWS) if row_s else _MOST_ROWS * (base_s > 0.0)

    def count(self, plans: Sequence[Plan], step_s: float) -> None:
        """Divide the seconds of a step in which these plans were carried out."""
        prefilling = [row for plan in plans for row in plan.prefilling]
        self.count_tokens(
            num_decoded=sum(len(plan.rows) for plan in plans) - len(prefilling),
            num_computed=sum(row.num_tokens for row in prefilling),
            num_recomputed=sum(row.num_recomputed for row in prefilling),
            num_copied=sum(plan.num_blocks_copied for plan in plans) * self._block_size,
            step_s=step_s,
        )

    def count_tokens(
        self, *, num_decoded: int, num_computed: int, num_recomputed: int, step_s: float, num_copied: int = 0
    ) -> None:
        """Divide the seconds of a step that decoded so many rows, and computed and copied so many tokens.

        Those computed again are among those computed.
        """
        num_others = num_computed + num_copied
        if not num_others:
            if num_decoded:
                self._decoding.observe(num_decoded, step_s)
            return
        decode_s = self._decoding.expected_s(num_decoded) if num_decoded else 0.0
        if decode_s is None:
            decode_s = step_s * num_decoded / (num_decoded + num_others)
        token_s = max(0.0, step_s - decode_s) / num_others
        self.stalls["prefill_s"] += token_s * (num_computed - num_recomputed)
        self.stalls["recompute_s"] += token_s * num_recomputed
        self.stalls["kv_moves_s"] += token_s * num_copied


class DecodeTimes:
    """Seconds of a step that only decodes, as a straight line over its rows through the last ones seen."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows_2 = self._both = 0.0
        """Sums over steps, of 1, rows, seconds, rows squared and rows times seconds."""

    def observe(self, num_rows: int, step_s: float) -> None:
        """Note a step that decoded so many rows, and nothing else, in so many seconds."""
        kept = 1.0 - _FORGETS
        self._weight = kept * self._weight + 1.0
        self._rows = kept * self._rows + num_rows
        self._seconds = kept * self._seconds + step_s
        self._rows_2 = kept * self._rows_2 + num_rows * num_rows
        self._both = kept * self._both + num_rows * step_s

    def expected_s(self, num_rows: int) -> float | None:
        """Seconds that decoding so many rows would take; None before the first step."""
        base_s, row_s = self.line
        return base_s + row_s * num_rows if self._weight else None

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of a step by itself, and of each of its rows; both 0 before the first step."""
        if not self._weight:
            return 0.0, 0.0
        mean_rows, mean_s = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_2 / self._weight - mean_rows * mean_rows
        slope = (self._both / self._weight - mean_rows * mean_s) / spread if spread > 0.25 else 0.0
        # More rows take no less time, and a step by itself takes some.
        row_s = min(max(0.0, slope), mean_s / mean_rows)
        return mean_s - row_s * mean_rows, row_s
