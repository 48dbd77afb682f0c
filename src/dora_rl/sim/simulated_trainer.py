"""The simulated trainer: how long a step takes, streamed or whole. Knows token counts, no tokens."""

from dora_rl.costs.train_cost import TrainCost


class SimulatedTrainer:
    """The trainer of a simulated run: fixed devices, plus the elastic ones lent for a step."""

    def __init__(self, cost: TrainCost, *, gpus: int, switch_s: float) -> None:
        self._cost = cost
        self._gpus = gpus
        self._switch_s = switch_s
        self.lent_gpus = 0
        self.busy_s = 0.0
        self.is_training = False
        self.ahead_s = 0.0
        """Seconds of the step in flight that were trained before its batch was taken."""
        self.publish_s = 0.0
        """Seconds that publishing the step in flight takes."""
        self._streamed_until = 0.0
        self._streamed_s = 0.0
        self._streamed: set[int] = set()

    def hand(self, group: int, tokens: int, now: float) -> None:
        """Streaming: begin work on a group as soon as the devices are free."""
        self._streamed.add(group)
        begin = max(now, self._streamed_until)
        seconds = self._cost.compute_s(tokens, self.gpus)
        self._streamed_until = begin + seconds
        self._streamed_s += seconds
        self.busy_s += seconds

    def begin(self, tokens_of: dict[int, int], now: float) -> tuple[float, float]:
        """Start a step on these groups; return when it is computed, and when its version is published."""
        rest = sum(tokens for group, tokens in tokens_of.items() if group not in self._streamed)
        switch = self._switch_s if self.lent_gpus else 0.0
        seconds = self._cost.compute_s(rest, self.gpus) + self._cost.fixed_s
        trained = max(now + switch, self._streamed_until) + seconds
        self.ahead_s = self._streamed_s - max(0.0, self._streamed_until - now)
        self.publish_s = self._cost.publish_s(self.gpus)
        self._streamed, self._streamed_until, self._streamed_s = set(), 0.0, 0.0
        self.busy_s += seconds
        self.is_training = True
        return trained, trained + self.publish_s

    def end(self) -> None:
        self.is_training = False

    @property
    def gpus(self) -> int:
        return max(1, self._gpus + self.lent_gpus)
