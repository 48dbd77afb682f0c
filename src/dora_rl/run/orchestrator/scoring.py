"""Ended trajectories become rewards: text, the judge's verdict, and what control and journal hear of it."""

from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from dora_rl.control.ledger import Phase
from dora_rl.control.plane import ControlPlane
from dora_rl.core.inputs import Input, RewardFault, Scored
from dora_rl.envs.config import ScoringConfig
from dora_rl.envs.scoring.messages import Item
from dora_rl.launch.protocol import Launch
from dora_rl.run.layout import LiveLayout
from dora_rl.run.orchestrator.deaths import Deaths
from dora_rl.run.orchestrator.failing import RewardFailures
from dora_rl.run.prompts import PromptTable
from dora_rl.run.rewards.judge import Judge, Judgement
from dora_rl.run.rewards.pool import ScorerPool
from dora_rl.store.records import AnyPayload, Rewarded

_NAME = "a reward worker"


class Scoring:
    """The rewards of a run."""

    def __init__(
        self,
        config: ScoringConfig,
        prompts: PromptTable,
        layout: LiveLayout,
        plane: ControlPlane,
        deaths: Deaths,
        judged: Callable[[Judgement], None],
        *,
        launch: Launch,
        max_failed: int,
    ) -> None:
        """`judged` hears every judgement; so many failed trajectories in a row end the run."""
        self.pool = ScorerPool(
            config,
            launch=launch,
            log=layout.rewards_log,
            replaced=lambda reason: deaths.note(_NAME, reason),
        )
        self._judge = Judge(self.pool, config.rewards)
        self._judged = judged
        self.failures = RewardFailures(
            layout.rewards_log, max_in_a_row=max_failed, time_limit_s=config.time_limit_s
        )
        self._prompts = prompts
        self._tokenizer = Tokenizer.from_file(str(layout.tokenizer))
        self._plane = plane
        self._attempts: dict[int, int] = {}
        """Of the trajectories that are being judged."""

    def check(self) -> None:
        """Wait for the functions to be imported; refuse rows that lack a column they need."""
        self.pool.wait_ready(self._prompts[0].row.columns)

    def text(self, tokens: Sequence[int]) -> str:
        """A response as reward functions see it."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def ask(self, trajectory: int, group: int, row: int, attempt: int, tokens: Sequence[int]) -> None:
        """Have a trajectory judged, and its group if it is the last of it."""
        self._attempts[trajectory] = attempt
        item = Item(row=self._prompts[row].row, text=self.text(tokens), token_ids=tuple(tokens))
        self._judge.trajectory_ended(trajectory, group, item)
        self.look_at(trajectory, group)

    def look_at(self, trajectory: int, group: int) -> None:
        """A member ended or was closed: if nothing more comes of its group, that can be judged."""
        found = self._plane.ledger.group_of(trajectory)
        if found is None or all(member.phase >= Phase.ENDED for member in found.members):
            self._judge.group_ended(group)

    def heard(self, at: float) -> tuple[list[Input], list[AnyPayload]]:
        """Judgements that came meanwhile."""
        inputs: list[Input] = []
        payloads: list[AnyPayload] = []
        for judgement in self._judge.poll():
            self.failures.judged(judgement.failures)
            self._judged(judgement)
            inputs.append(_scored(judgement, at))
            payloads.append(self._payload(judgement))
        return inputs, payloads

    def _payload(self, judgement: Judgement) -> Rewarded:
        return Rewarded(
            trajectory=judgement.trajectory,
            attempt=self._attempts.pop(judgement.trajectory),
            reward=judgement.reward,
            values=judgement.values,
        )

    def close(self) -> None:
        self.pool.close()
        self.failures.close()


def _scored(judgement: Judgement, at: float) -> Scored:
    return Scored(
        at=at,
        trajectory=judgement.trajectory,
        reward=judgement.reward,
        failures=tuple(
            RewardFault(function=failure.function, reason=failure.reason, detail=failure.summary)
            for failure in judgement.failures
        ),
    )
