"""metrics.jsonl: one flat JSON object a train step, under TRL's names; a torn last line is left for later."""

from pathlib import Path

import msgspec

Metrics = dict[str, int | float | str | None]

_decode = msgspec.json.Decoder(Metrics).decode


class MetricsTail:
    """What was added to the file since it was last looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Metrics]:
        """New rows; a line without an end is waited for, one that is no row is passed over."""
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
