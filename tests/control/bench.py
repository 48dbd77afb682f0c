"""A control plane on the bench: tell it things one at a time, look at what it decides."""

from typing import Any, TypeVar

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.plane import ControlPlane
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision, Interrupt, Load, Start
from dora_rl.core.inputs import Input
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Batch, Control
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.envs.prompt_offers import PromptOffers
from dora_rl.envs.prompt_source import ShuffledRows

D = TypeVar("D", bound=Decision)


class Bench:
    """Remembers every decision; time goes on by a tenth of a second with each input."""

    def __init__(
        self,
        *,
        groups: int = 1,
        group_size: int = 1,
        steps: int = 9,
        prompt_tokens: int = 5,
        episode: EpisodeSettings | None = None,
        **control: Any,
    ) -> None:
        self.plane = ControlPlane(
            Control(**({"min_members": 1} | control)),
            Batch(groups=groups, group_size=group_size),
            steps=steps,
            estimates=Estimates(
                lengths=LearnedLengths(prior_tokens=20, max_tokens=100), load_s=0.1, move_s=0.01, step_s=0.01
            ),
            episode=episode,
        )
        self._source = ShuffledRows(7, seed=0)
        self._offers = PromptOffers([prompt_tokens] * 7)
        self.has_prompts = True
        """Set to False by whoever offers them itself."""
        self.now = 0.0
        self.all: list[Decision] = []

    def tell(self, kind: type[Input], **fields: Any) -> list[Decision]:
        self.now += fields.pop("after", 0.1)
        self._offer()
        decisions = self.plane.handle(kind(at=self.now, **fields))
        self.plane.check_integrity()
        self.all += decisions
        return decisions

    def _offer(self) -> None:
        """There are always prompts enough for the next input."""
        queue = self.plane.prompts
        if self.has_prompts and len(queue) < queue.most_at_once:
            rows = self._source.choose(queue.most_at_once)
            self._source.offered(rows or ())
            self.all += self.plane.handle(self._offers.offer(rows, self.now))

    def join(self, instance: int, *, version: int = 0, **spec: Any) -> list[Decision]:
        fields = {"slots": 8, "kv_tokens": 10_000, "max_versions": 1} | spec
        return self.tell(told.InstanceJoined, instance=instance, spec=InstanceSpec(**fields), version=version)

    def tick(self, *, after: float = 5.0) -> list[Decision]:
        return self.tell(told.Tick, after=after)

    def hear(self, *instances: int) -> None:
        """Signs of life."""
        for instance in instances:
            self.tell(told.LoadReport, instance=instance, clock=0.0, kv_tokens=0, step_s=0.01)

    def end(self, start: Start, *, tokens: int = 3, reward: float = 0.0) -> list[Decision]:
        """A trajectory ends where it was started, and is scored."""
        ended = self.tell(told.Ended, instance=start.instance, trajectory=start.trajectory, tokens=tokens,
                          clock=tokens, kv_tokens=0)  # fmt: skip
        return ended + self.tell(told.Scored, trajectory=start.trajectory, reward=reward)

    def turn_ends(self, start: Start, *, tokens: int = 3, others_kv: int = 0) -> list[Decision]:
        kv = start.prompt_tokens + tokens + others_kv
        return self.tell(told.TurnEnded, instance=start.instance, trajectory=start.trajectory, tokens=tokens,
                         clock=tokens, kv_tokens=kv)  # fmt: skip

    def press(self, instance: int, *, kv_tokens: int = 9_990) -> list[Decision]:
        """The instance has no KV left: whatever is on it should move."""
        return self.tell(told.KvPressure, instance=instance, clock=1.0, kv_tokens=kv_tokens)

    def publish(self, *, after: float = 0.1) -> list[Decision]:
        return self.tell(told.Published, version=self.plane.window.newest + 1, train_s=1.0, after=after)

    def made(self, kind: type[D]) -> list[D]:
        return only(self.all, kind)

    def run_steps(self, count: int) -> None:
        """Whatever starts ends, whatever loads is loaded, until `count` more steps are published."""
        until, seen = self.plane.window.newest + count, 0
        while self.plane.window.newest < until:
            assert seen < len(self.all) or self.plane.is_training, "nothing goes on"
            for decision in self.all[seen:]:
                seen += 1
                self._carry_out(decision)
            if self.plane.is_training:
                self.publish(after=10.0)

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Load | Interrupt):
            self.tell(told.Loaded, instance=decision.instance, version=decision.version)
        elif isinstance(decision, Start) and self.plane.ledger.trajectory(decision.trajectory) is not None:
            self.end(decision, reward=float(decision.member))


def only(decisions: list[Decision], kind: type[D]) -> list[D]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def one(decisions: list[Decision], kind: type[D]) -> D:
    (decision,) = only(decisions, kind)
    return decision
