"""Reading metrics.jsonl, one flat JSON object a train step, under TRL's names, while it grows.

Owns the place up to which the file was read; a torn last line is left for later.
"""

from pathlib import Path

import msgspec

Metrics = dict[str, int | float | str | None]
"""One row of metrics.jsonl, by metric."""

_decode = msgspec.json.Decoder(Metrics).decode


class MetricsTail:
    """Reads the rows added to metrics.jsonl since it was last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def notice_cut(self) -> None:
        """A resumed run cuts off rows that its journal does not have: what is written after that is new."""
        if self._path.is_file():
            self._offset = min(self._offset, self._path.stat().st_size)

    def read(self) -> list[Metrics]:
        """The new rows; a last line without its end is left for later, one that is no row is skipped."""
        self.notice_cut()
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = content.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [row for line in whole.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> Metrics | None:
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
