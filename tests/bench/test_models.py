"""`dora bench models`: rows come of models that really trained and generated."""

import pytest
import torch

from dora_rl.bench import models
from dora_rl.bench.models import measured, settled_types
from dora_rl.bench.tiny_models import ALL
from dora_rl.core.errors import ConfigError
from dora_rl.model.families import FAMILIES
from dora_rl.trainer.trainer import Trainer


@pytest.mark.parametrize(
    ("model_type", "computing", "is_packed"),
    [("qwen2", "native", True), ("gpt2", "transformers", True), ("mamba", "transformers", False)],
)
def test_a_row_says_who_computes_and_how_far_engine_and_trainer_are_apart(
    model_type: str, computing: str, is_packed: bool
) -> None:
    row = measured(model_type, num_requests=4, num_tokens=6)
    assert (row.trains, row.computing, row.is_packed, row.failure) == (True, computing, is_packed, "")
    assert row.gap_mean <= row.gap_max < 0.3, "a recurrent state in bfloat16 is the coarsest"
    assert -5.0 < row.mean_logprob < -1.0
    assert min(row.generated_per_s, row.trained_per_s) > 0


@pytest.mark.parametrize("model_type", ["gpt2", "gemma2", "gpt_oss"])
def test_an_engine_with_other_weights_than_the_trainers_has_a_gap(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Trainer.served_tensors

    def spoiled(self: Trainer) -> dict[str, torch.Tensor]:
        return {name: 1.2 * each for name, each in served(self).items()}

    monkeypatch.setattr(Trainer, "served_tensors", spoiled)
    assert measured(model_type, num_requests=4, num_tokens=6).gap_mean > 1e-2


def test_a_trainer_that_moves_nothing_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[int, object] = {}
    served = Trainer.served_tensors

    def frozen(self: Trainer) -> object:
        return first.setdefault(id(self), {name: each.clone() for name, each in served(self).items()})

    monkeypatch.setattr(Trainer, "served_tensors", frozen)
    assert not measured("qwen2", num_requests=4, num_tokens=4).trains


def test_a_model_that_is_refused_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        raise ConfigError("not this one")

    monkeypatch.setattr(models, "with_computing", refused)
    row = measured("gpt2", num_requests=4, num_tokens=4)
    assert (row.trains, row.failure) == (False, "not this one")


def test_every_native_family_has_a_row_and_an_unknown_type_is_a_sentence() -> None:
    shown = {each.removesuffix("_text") for each in FAMILIES}
    assert shown <= set(settled_types(None)) == set(ALL)
    assert settled_types("gpt2, mamba") == ["gpt2", "mamba"]
    with pytest.raises(ConfigError, match="there is no 'gpt22' here") as told:
        settled_types("gpt22")
    assert told.value.hint == "did you mean 'gpt2'?"
