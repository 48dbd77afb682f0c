"""The process of a user's own source of prompts: `python -m dora_rl.run.workers.source_worker ADDRESS`.

Chooses rows, or reads those of a stream. Answers one question after the other, in the order of what it is
told in between. Never imports torch unless the user's module does.
"""

import operator
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.named import load_named
from dora_rl.envs.prompt_source import PromptSource, make_source
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.run import source_messages as say
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.workers.stream_reader import StreamReader


class RowChooser:
    """Calls the user's prompt source as it is told."""

    hears_scores = True

    def __init__(self, opened: say.OpenSource) -> None:
        rows = [prompt.row for prompt in PromptTable.read(Path(opened.prompts)).train]
        made = load_named(opened.order.name, opened.objects)
        self._source: PromptSource = make_source(made, rows, seed=opened.seed, options=opened.order.options)
        for message in opened.told:
            self.tell(message)

    def tell(self, message: say.SourceTold) -> None:
        """Tell the source what became of the rows it chose."""
        match message:
            case say.RowsOffered():
                self._source.offered(message.rows)
            case say.GroupScored():
                self._source.scored(message.score)

    def answers(self, count: int) -> Iterator[say.SourceWord]:
        """The rows the source chooses, as plain numbers."""
        rows = self._source.choose(count)
        yield say.RowsChosen(rows=None if rows is None else tuple(map(operator.index, rows)))


@contextmanager
def _named_failure(name: str) -> Iterator[None]:
    """Turn whatever the user's code raises into an error that says where it was."""
    try:
        yield
    except DoraError:
        raise
    except Exception as error:
        traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"the source of prompts '{name}' raised {type(error).__name__}: {error}",
            hint=f"mend {frame.filename}, line {frame.lineno}, and resume the run",
        ) from error


def main(address: str) -> NoReturn:
    """Open the prompt source, and serve until told to stop or the owner is gone."""
    channel = Channel.connect(address, say.SourceCommand)
    with telling_why(channel):
        opened: say.OpenSource | say.OpenStream = channel.receive()
        with _named_failure(opened.name):
            worker: RowChooser | StreamReader
            if isinstance(opened, say.OpenStream):
                worker = StreamReader(opened, lambda: channel.send(say.Alive()))
            else:
                worker = RowChooser(opened)
            channel.send(say.SourceReady(hears_scores=worker.hears_scores))
            while not isinstance(message := channel.receive(), say.Stop):
                if isinstance(message, say.ChooseRows):
                    for word in worker.answers(message.count):
                        channel.send(word)
                else:
                    worker.tell(message)
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
