"""The model after a supervised start on what the rows show: version 0 of a run that asks for one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.model.load import load_decoder
from dora_rl.model.save import save_decoder
from dora_rl.model.tokenizer import load_tokenizer, save_tokenizer
from dora_rl.run.prompt_table import PromptTable
from dora_rl.trainer.supervised import warm_started


def write_initial_model(
    recipe: Recipe, model: Path, prompts: PromptTable, target: Path, done: Callable[[int], None]
) -> None:
    """Train on the rows' answers and write the model; `done` is told the number of steps done."""
    tokenizer = load_tokenizer(model)
    shown = [(prompt.token_ids, _answer(prompt, tokenizer)) for prompt in prompts.train]
    decoder = load_decoder(model, dtype=torch.float32)
    save_decoder(warm_started(decoder, shown, recipe.warm_start, seed=recipe.seed, done=done), target)
    save_tokenizer(tokenizer, target)


def _answer(prompt: TokenizedPrompt, tokenizer: Any) -> tuple[int, ...]:
    columns = prompt.row.columns
    shown = columns.get("demonstration", columns.get("solution"))
    if not isinstance(shown, str):
        raise ConfigError(
            f"row {prompt.row.row} has no text under 'demonstration' or 'solution' for a warm start to show",
            hint="give the rows such a column, or leave warm_start.steps at 0",
        )
    tokens = tokenizer(shown, add_special_tokens=False)["input_ids"]
    return (*tokens, tokenizer.eos_token_id)
