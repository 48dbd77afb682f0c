"""The process of a user's own source of prompts: `python -m dora_rl.run.workers.source_worker ADDRESS`.

Answers one question after the other, in the order of what it is told in between. Never imports torch unless
the user's module does.
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
from dora_rl.run import messages as say
from dora_rl.run.prompt_table import PromptTable


class SourceWorker:
    """Calls the user's prompt source as it is told."""

    def __init__(self, opened: say.OpenSource) -> None:
        self._name = opened.order.name
        rows = [prompt.row for prompt in PromptTable.read(Path(opened.prompts)).train]
        with self._named_failure():
            made = load_named(opened.order.name, opened.objects)
            self._source: PromptSource = make_source(
                made, rows, seed=opened.seed, options=opened.order.options
            )
        for message in opened.told:
            self.tell(message)

    def tell(self, message: say.SourceTold) -> None:
        """Tell the source what became of the rows it chose."""
        with self._named_failure():
            match message:
                case say.RowsOffered():
                    self._source.offered(message.rows)
                case say.GroupScored():
                    self._source.scored(message.score)

    def choose(self, count: int) -> tuple[int, ...] | None:
        """The rows the source chooses, as plain numbers."""
        with self._named_failure():
            rows = self._source.choose(count)
            return None if rows is None else tuple(map(operator.index, rows))

    @contextmanager
    def _named_failure(self) -> Iterator[None]:
        """Turn whatever the user's code raises into an error that says where it was."""
        try:
            yield
        except DoraError:
            raise
        except Exception as error:
            traceback.print_exc()
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise UserError(
                f"the source of prompts '{self._name}' raised {type(error).__name__}: {error}",
                hint=f"mend {frame.filename}, line {frame.lineno}, and resume the run",
            ) from error


def main(address: str) -> NoReturn:
    """Open the prompt source, and serve until told to stop or the owner is gone."""
    channel = Channel.connect(address, say.SourceCommand)
    with telling_why(channel):
        worker = SourceWorker(channel.receive())
        channel.send(say.SourceReady())
        while not isinstance(message := channel.receive(), say.Stop):
            if isinstance(message, say.ChooseRows):
                channel.send(say.RowsChosen(rows=worker.choose(message.count)))
            else:
                worker.tell(message)
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
