"""Rows as token ids, once: `python -m dora_rl.runtime.workers.prompts FD`.

A process of its own because tokenizers come with torch. Writes into the directory it is told, and ends.
"""

import sys
import traceback
from pathlib import Path

from dora_rl.core.errors import DoraError, UserError
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.prompts import tokenize_rows
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer
from dora_rl.runtime import messages as say
from dora_rl.runtime.layout import LiveLayout
from dora_rl.runtime.prompts import PromptTable, check_lengths
from dora_rl.runtime.setup import LiveSetup
from dora_rl.runtime.workers.channel import Channel


def write_prompts(setup: LiveSetup, layout: LiveLayout) -> PromptTable:
    """Load and tokenize the rows; leave the table and the tokenizer behind."""
    data, tokenizer = load_data(setup.data), load_tokenizer(Path(setup.model))
    train = tokenize_rows(data.train, tokenizer, setup.data)
    held_out = tokenize_rows(data.held_out, tokenizer, setup.data) if data.held_out else None
    table = PromptTable(
        train=train.prompts,
        held_out=held_out.prompts if held_out else (),
        stop_tokens=tuple(sorted(load_eos_ids(Path(setup.model)))),
        num_overlong=train.num_overlong + (held_out.num_overlong if held_out else 0),
    )
    check_lengths(table, setup)
    table.write(layout.prompts)
    layout.tokenizer.write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
    return table


def main(fd: int) -> None:
    """Do it, and say so."""
    channel = Channel(fd, say.Begin)
    begin: say.Begin = channel.receive()
    try:
        with channel.kept_alive(begin.setup.patience.start_s):
            write_prompts(begin.setup, LiveLayout(root=Path(begin.store)))
        channel.send(say.PromptsWritten())
    except DoraError as error:
        # The one place where a worker's failure becomes a message: its owner decides what follows.
        traceback.print_exc()
        channel.send(
            say.Broken(message=error.message, is_users=isinstance(error, UserError), hint=error.hint)
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
