"""Reads a stream for its run, in the process of a source of prompts: rows become token ids here.

Has the user's code and the run's tokenizer. Says each row as soon as it is read, so a stream that makes one
wait holds back nothing that it gave before.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from dora_rl.core.errors import UserError
from dora_rl.envs.row_stream import ENDED, RowStream, StreamEnd
from dora_rl.envs.tokenized_prompts import tokenize_row
from dora_rl.model.tokenizer import load_tokenizer
from dora_rl.run import source_messages as say


class StreamReader:
    """Reads rows of a stream as it is asked to."""

    def __init__(self, opened: say.OpenStream, alive: Callable[[], None]) -> None:
        """Open the stream where it goes on; `alive` is called now and then while that takes long."""
        self._data = opened.data
        self._columns = dict.fromkeys(opened.columns)
        self._tokenizer = load_tokenizer(Path(opened.model))
        self._stream = RowStream(opened.data.train, seed=opened.data.seed, objects=opened.objects)
        if self._stream.hears_scores:
            # It is led through all of it again, so that it is where it was.
            for message in opened.told:
                if isinstance(message, say.RowsOffered):
                    self._stream.skip_to(max(message.rows, default=-1) + 1, alive)
                else:
                    self.tell(message)
                alive()
        self._stream.skip_to(opened.place, alive)

    @property
    def hears_scores(self) -> bool:
        return self._stream.hears_scores

    def tell(self, message: say.SourceTold) -> None:
        """Tell the stream what came of a row, if it wants to know."""
        if isinstance(message, say.GroupScored) and self._stream.hears_scores:
            self._stream.scored(message.score)

    def answers(self, count: int) -> Iterator[say.SourceWord]:
        """Up to `count` rows that are short enough, each as soon as it is read."""
        for _ in range(count):
            row = self._stream.read()
            if row is None or isinstance(row, StreamEnd):
                yield say.RowsRead(is_ended=row is ENDED, is_dry=row is None)
                return
            columns = self._columns | row.columns
            prompt = tokenize_row(replace(row, columns=columns), self._tokenizer, self._data)
            limit, length = self._data.max_prompt_tokens, len(prompt.token_ids)
            if limit is None or length <= limit:
                yield say.RowRead(prompt=prompt)
            elif self._data.overlong_prompts == "error":
                raise UserError(
                    f"the prompt of row {row.row} of the stream has {length} tokens, more than "
                    f"max_prompt_tokens = {limit}",
                    hint="start with a greater data.max_prompt_tokens, or with data.overlong_prompts=skip",
                )
            else:
                yield say.Alive()
        yield say.RowsRead()
