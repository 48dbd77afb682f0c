"""Which scores an algorithm needs of trajectories before their loss, and from which weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.trainer.examples import TokenScores
from dora_rl.trainer.frozen_scores import scored
from dora_rl.trainer.kept import KeptVersions
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.ranks import Ranks
from dora_rl.trainer.tensors import drawn_by
from dora_rl.trainer.train_batch import TrainGroup, TrainTrajectory

Results = tuple[list[Tensor], list[Tensor] | None]


class LogprobScorer:
    """Computes logprobs without gradient: by the policy in training, the reference and the kept versions."""

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig,
        *,
        needs_proximal: bool,
        reference: Policy | None,
        kept: KeptVersions | None,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self._policy = policy
        self._config = config
        self._needs_proximal = needs_proximal
        self._reference = reference
        self._kept = kept
        self._ranks = ranks
        self._device = device

    def scores_of(self, groups: Sequence[TrainGroup]) -> list[TokenScores]:
        """The scores of every member in order, as the algorithm needs them."""
        members = [member for group in groups for member in group.members]
        found = self._needed(members)
        scores = [
            TokenScores(**{name: values[i] for name, values in found.items()}) for i in range(len(members))
        ]
        return self._with_recomputed(scores, members)

    def score(self, policy: Policy, members: Sequence[TrainTrajectory]) -> Results:
        """Logprobs, and values where there is a critic, of each trajectory's policy tokens."""
        return scored(
            policy,
            members,
            max_tokens=self._config.micro_batch_tokens,
            ranks=self._ranks,
            device=self._device,
        )

    def _needed(self, members: Sequence[TrainTrajectory]) -> Mapping[str, Sequence[Tensor]]:
        algorithm = self._config.algorithm
        found: dict[str, Sequence[Tensor]] = {}
        if algorithm.kl is not None and self._reference is not None:
            found["reference_P"], _ = self.score(self._reference, members)
        if self._needs_proximal or algorithm.advantage.needs_critic:
            logprobs, values = self.score(self._policy, members)
            if self._needs_proximal:
                found["proximal_P"] = logprobs
            if values is not None:
                found["values_P"] = values
        return found

    def _with_recomputed(
        self, scores: list[TokenScores], members: Sequence[TrainTrajectory]
    ) -> list[TokenScores]:
        """The scores with logprobs under the versions that drew the tokens, where they are kept.

        A trajectory of several versions is computed whole under each, as the engine did when it went on.
        """
        if self._kept is None:
            return scores
        for version, indices in self._kept.by_version(members).items():
            logprobs, _ = self.score(self._kept[version], [members[i] for i in indices])
            for i, own_P in zip(indices, logprobs, strict=True):
                is_drawn_P = drawn_by(members[i]) == version
                known_P, is_known_P = scores[i].recomputed_P, scores[i].is_recomputed_P
                scores[i] = replace(
                    scores[i],
                    recomputed_P=own_P.where(
                        is_drawn_P, torch.tensor(members[i].logprobs) if known_P is None else known_P
                    ),
                    is_recomputed_P=is_drawn_P if is_known_P is None else is_drawn_P | is_known_P,
                )
        return scores
