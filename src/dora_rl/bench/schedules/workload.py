"""A workload for prescribed lengths, as files: a model of random weights, rows, and a recipe that names them.

Speed depends on shapes, lengths and how many weights a step moves, not on what was learned: no download is
needed, and the reward is a coin.
"""

import json
import random
from pathlib import Path

import torch
import yaml
from msgspec.structs import replace

from dora_rl.bench.schedules.coin import coin_reward
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Lognormal
from dora_rl.core.record import Record
from dora_rl.model.characters import ALPHABET, character_tokenizer
from dora_rl.model.config import Dtype, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.random_models import SHAPES, random_weights
from dora_rl.model.save import save_decoder
from dora_rl.model.tokenizer import save_tokenizer

_ROWS = 2048
_MICRO_BATCH_TOKENS = 32_768
_MICRO_BATCH_VALUES = _MICRO_BATCH_TOKENS * 1024
"""Values of hidden states in a micro-batch: as many at any width."""


class PrescribedWorkload(Record, frozen=True):
    """A model of random weights, and the responses of prescribed lengths it generates and trains on."""

    shape: str
    device: str
    groups: int
    group_size: int
    slots: int
    lengths: Lognormal
    prompt_tokens: int = 64
    max_staleness: int = 3
    max_versions: int = 3
    """Most versions at once on an instance: each costs every round a pass over its weights."""

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one pass of the trainer: fewer where each takes more memory."""
        return min(_MICRO_BATCH_TOKENS, _MICRO_BATCH_VALUES // SHAPES[self.shape].hidden_size)

    @property
    def dtype(self) -> Dtype:
        return "bfloat16" if self.device == "cuda" else "float32"


def write_workload(work: PrescribedWorkload, directory: Path) -> Path:
    """Write a workload's model, rows and recipe, and return the recipe's path."""
    if work.shape not in SHAPES:
        raise ConfigError(f"no shape named '{work.shape}'", hint=f"known: {', '.join(SHAPES)}")
    _write_model(replace(SHAPES[work.shape], dtype=work.dtype), work.device, directory / "model")
    rng = random.Random("rows of prescribed lengths")
    with (directory / "rows.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(_ROWS):
            prompt = "".join(rng.choices(ALPHABET[1:], k=work.prompt_tokens))
            file.write(json.dumps({"prompt": prompt}) + "\n")
    path = directory / "recipe.yaml"
    path.write_text(yaml.safe_dump(_recipe(work, directory)), encoding="utf-8")
    return path


def _write_model(shape: ModelConfig, device: str, target: Path) -> None:
    tokenizer = character_tokenizer()
    # No response will end with it, but a model without one is refused.
    model = replace(shape, eos_token_ids=(tokenizer.eos_token_id,))
    weights = random_weights(model, seed=0, device=device, dtype=getattr(torch, model.dtype))
    decoder = Decoder.empty(model, dtype=getattr(torch, model.dtype)).requires_grad_(False)
    decoder.load_state_dict(weights)
    save_decoder(decoder, target)
    save_tokenizer(tokenizer, target)


def _recipe(work: PrescribedWorkload, directory: Path) -> dict[str, object]:
    return {
        "model": str(directory / "model"),
        "data": {"train": {"name": str(directory / "rows.jsonl")}},
        "rewards": [{"function": f"{coin_reward.__module__}:{coin_reward.__name__}"}],
        "batch": {"groups": work.groups, "group_size": work.group_size},
        "control": {
            "max_staleness": work.max_staleness,
            # As much as the bound allows: a tail is short beside what else there is to generate.
            "active_groups": (work.max_staleness + 1) * work.groups,
        },
        "response": {"max_new_tokens": work.lengths.max_tokens},
        "cluster": {"slots": work.slots, "max_versions": work.max_versions},
        "trainer": {"serving_dtype": work.dtype, "micro_batch_tokens": work.micro_batch_tokens},
        "optimizer": {"learning_rate": 1e-6},
        "scoring": {"processes": 1},
    }
