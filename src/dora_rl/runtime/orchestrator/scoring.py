"""Ended trajectories become rewards: text, the judge's verdict, and what control and journal hear of it."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from dora_rl.control.ledger import Phase
from dora_rl.control.plane import ControlPlane
from dora_rl.core.inputs import Input, Scored
from dora_rl.envs.config import ScoringConfig
from dora_rl.envs.scoring.judge import Judge, Judgement
from dora_rl.envs.scoring.messages import Item
from dora_rl.envs.scoring.pool import ScorerPool
from dora_rl.runtime.orchestrator.deaths import Deaths, WorkerDied
from dora_rl.runtime.prompts import PromptTable
from dora_rl.store.records import AnyPayload, Rewarded

_NAME = "a reward worker"
_UNANSWERED = ("process died", "time limit")


class Scoring:
    """The rewards of a run."""

    def __init__(
        self,
        config: ScoringConfig,
        prompts: PromptTable,
        tokenizer: Path,
        plane: ControlPlane,
        deaths: Deaths,
        *,
        max_unanswered: int,
    ) -> None:
        """So many trajectories in a row over which reward workers die or hang end the run."""
        self.pool = ScorerPool(config, replaced=lambda reason: deaths.note(_NAME, reason))
        self._judge = Judge(self.pool, config.rewards)
        self._max_unanswered = max_unanswered
        self._num_unanswered = 0
        self._prompts = prompts
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._plane = plane
        self._attempts: dict[int, int] = {}
        """Of the trajectories that are being judged."""
        self.num_failures = 0

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
            inputs.append(Scored(at=at, trajectory=judgement.trajectory, reward=judgement.reward))
            payloads.append(self._payload(judgement))
        return inputs, payloads

    def _payload(self, judgement: Judgement) -> Rewarded:
        self.num_failures += len(judgement.failures)
        self._check_answered(judgement)
        return Rewarded(
            trajectory=judgement.trajectory,
            attempt=self._attempts.pop(judgement.trajectory),
            reward=judgement.reward,
            values=judgement.values,
        )

    def _check_answered(self, judgement: Judgement) -> None:
        """One row may kill its function, and is counted; if everything does, nothing is learnt any more."""
        unanswered = [each for each in judgement.failures if each.reason in _UNANSWERED]
        self._num_unanswered = self._num_unanswered + 1 if unanswered else 0
        if self._num_unanswered >= self._max_unanswered:
            last = unanswered[-1]
            raise WorkerDied(
                f"reward workers died or hung over {self._num_unanswered} trajectories in a row; "
                f"the last time in {last.function}: {last.detail}",
                hint="call the function on such a row in a Python of your own",
            )

    def close(self) -> None:
        self.pool.close()
