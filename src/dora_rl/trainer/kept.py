"""The latest versions' weights, kept to compute again what the version behind a trajectory says of it.

Each is a model of its own in the serving dtype, whole on every rank.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from dora_rl.model.language_model import LanguageModel, PassKind, filled_like
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.train_batch import TrainTrajectory


class KeptVersions:
    """Weights of the latest versions, at most `num_versions`; the oldest goes first."""

    def __init__(
        self,
        model: LanguageModel,
        num_versions: int,
        *,
        dtype: torch.dtype,
        attention: PassKind = "auto",
    ) -> None:
        self._model = model
        self._num_versions = num_versions
        self._dtype = dtype
        self._attention: PassKind = attention
        self._policies: dict[int, Policy] = {}

    def __getitem__(self, version: int) -> Policy:
        return self._policies[version]

    def keep(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a version's weights."""
        decoder = filled_like(self._model, tensors, dtype=self._dtype)
        self._policies[version] = Policy(decoder, attention=self._attention)
        for old in sorted(self._policies)[: -self._num_versions]:
            del self._policies[old]

    def tensors(self) -> dict[int, dict[str, Tensor]]:
        """The weights of every kept version, by version and name."""
        return {
            version: {name: own.detach() for name, own in policy.decoder.named_parameters()}
            for version, policy in sorted(self._policies.items())
        }

    def replace(self, versions: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Keep these versions and no others."""
        self._policies.clear()
        for version, tensors in versions.items():
            self.keep(version, tensors.items())

    def by_version(self, members: Sequence[TrainTrajectory]) -> Mapping[int, list[int]]:
        """Indices of the members that a kept version generated, all or some tokens, by that version."""
        found: dict[int, list[int]] = {}
        for index, member in enumerate(members):
            for version in self._policies.keys() & {member.version, *member.versions}:
                found.setdefault(version, []).append(index)
        return dict(sorted(found.items()))
