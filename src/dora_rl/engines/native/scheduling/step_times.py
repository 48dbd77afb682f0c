"""How the seconds of an engine's steps divide: decoding, computing prompts, computing again, copying KV.

One step may do all of them. What it takes beyond a step that only decodes is shared by the number of tokens
that are computed for the first time, computed again and copied. Time is an argument.
"""

from collections.abc import Sequence

from dora_rl.engines.native.scheduling.step_plan import Plan

_NEWEST_WEIGHS = 0.1


class StepTimes:
    """Adds up the seconds of steps that were no decoding; told of every step."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.stalls = {"prefill_s": 0.0, "recompute_s": 0.0, "kv_moves_s": 0.0}
        """Seconds by what they went to, named as in EngineLoad."""
        self._decode_s: float | None = None
        """Seconds of a step that only decodes, as a running average; None before the first."""

    def count(self, plans: Sequence[Plan], step_s: float) -> None:
        """Divide the seconds of a step in which these plans were carried out."""
        prefilling = [row for plan in plans for row in plan.prefilling]
        num_decoded = sum(len(plan.rows) for plan in plans) - len(prefilling)
        num_computed = sum(row.num_tokens for row in prefilling)
        num_recomputed = sum(row.num_recomputed for row in prefilling)
        num_copied = sum(plan.num_blocks_copied for plan in plans) * self._block_size
        num_others = num_computed + num_copied
        if not num_others:
            if num_decoded:
                self._decoded(step_s)
            return
        token_s = self._others_s(step_s, num_decoded, num_others) / num_others
        self.stalls["prefill_s"] += token_s * (num_computed - num_recomputed)
        self.stalls["recompute_s"] += token_s * num_recomputed
        self.stalls["kv_moves_s"] += token_s * num_copied

    def _decoded(self, step_s: float) -> None:
        usual_s = step_s if self._decode_s is None else self._decode_s
        self._decode_s = _NEWEST_WEIGHS * step_s + (1 - _NEWEST_WEIGHS) * usual_s

    def _others_s(self, step_s: float, num_decoded: int, num_others: int) -> float:
        """Seconds of a step that the tokens took which were not decoded."""
        if not num_decoded:
            return step_s
        if self._decode_s is None:
            return step_s * num_others / (num_decoded + num_others)
        return max(0.0, step_s - self._decode_s)
