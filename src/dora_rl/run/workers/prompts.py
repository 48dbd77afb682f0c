"""Rows as token ids, and the model after a warm start: `python -m dora_rl.run.workers.prompts ADDRESS`.

A process of its own because tokenizers come with torch. Writes into the directory it is told, and ends.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.live import WarmStart
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.prompts import TokenizedPrompt, tokenize_rows
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.model.load import load_decoder
from dora_rl.model.save import save_decoder
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer, save_tokenizer
from dora_rl.run import messages as say
from dora_rl.run.layout import LiveLayout
from dora_rl.run.prompts import PromptTable, check_lengths
from dora_rl.run.setup import RunSetup
from dora_rl.trainer.supervised import warm_started


def write_prompts(setup: RunSetup, layout: LiveLayout) -> PromptTable:
    """Load and tokenize the rows; leave the table and the tokenizer behind."""
    data, tokenizer = load_data(setup.data), load_tokenizer(Path(setup.model_directory))
    train = tokenize_rows(data.train, tokenizer, setup.data)
    held_out = tokenize_rows(data.held_out, tokenizer, setup.data) if data.held_out else None
    table = PromptTable(
        train=train.prompts,
        held_out=held_out.prompts if held_out else (),
        stop_tokens=tuple(sorted(load_eos_ids(Path(setup.model_directory)))),
        num_overlong=train.num_overlong,
        num_overlong_held_out=held_out.num_overlong if held_out else 0,
    )
    check_lengths(table, setup)
    table.write(layout.prompts)
    layout.tokenizer.write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
    return table


def write_initial_model(
    setup: RunSetup, warm_start: WarmStart, table: PromptTable, target: Path, done: Callable[[int], None]
) -> None:
    """The model after a supervised start on what the rows show; `done` hears how many steps are."""
    directory = Path(setup.model_directory)
    tokenizer = load_tokenizer(directory)
    shown = [(prompt.token_ids, _answer(prompt, tokenizer)) for prompt in table.train]
    decoder = load_decoder(directory, dtype=torch.float32)
    save_decoder(warm_started(decoder, shown, warm_start, seed=setup.recipe.seed, done=done), target)
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


def main(address: str) -> None:
    """Do it, and say so."""
    channel = Channel.connect(address, say.Begin)
    begin: say.Begin = channel.receive()
    with telling_why(channel):
        # Each piece has a limit of its own, which the owner keeps.
        with channel.kept_alive(math.inf):
            _prepare(channel, begin.setup, LiveLayout(root=Path(begin.store)))
        channel.send(say.PromptsWritten())


def _prepare(channel: Channel, setup: RunSetup, layout: LiveLayout) -> None:
    limit_s = setup.recipe.patience.step_s
    channel.send(say.Preparing(what="reading the rows", limit_s=limit_s))
    table = write_prompts(setup, layout)
    if (warm_start := setup.recipe.warm_start).steps:

        def done(steps: int) -> None:
            channel.send(
                say.Preparing(what="warm start", limit_s=limit_s, done=steps, total=warm_start.steps)
            )

        done(0)
        write_initial_model(setup, warm_start, table, layout.initial_model, done)


if __name__ == "__main__":
    main(sys.argv[1])
