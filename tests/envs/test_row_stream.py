"""Streams of rows: read as they are needed, numbered by their places, opened again at any of them."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe.data import DataConfig, OrderConfig, PartConfig, SourceConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.sources import MOST_UNSIZED, load_data
from dora_rl.envs.prompt_source import GroupScore
from dora_rl.envs.row_stream import ENDED, RowStream, load_stream_start

HERE = f"{Path(__file__)}"


def endless(start: int = 0) -> Iterator[dict[str, Any]]:
    yield from ({"question": f"row {i}", "number": i} for i in count(start))


def three() -> Iterator[dict[str, Any]]:
    yield from islice(endless(), 3)


def halting() -> Iterator[dict[str, Any] | None]:
    for row in three():
        yield None
        yield row


class Skippable:
    """Rows of which none may be read that were skipped."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return endless(self.first)

    def skip(self, count: int) -> "Skippable":
        return Skippable(self.first + count)


class Hearing(Skippable):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def scored(self, score: GroupScore) -> None:
        self.heard.append(score.row)


def source(name: str, **fields: Any) -> SourceConfig:
    return SourceConfig(name=f"{HERE}:{name}", columns={"prompt": "question"}, stream=True, **fields)


def read(stream: RowStream, number: int) -> list[int]:
    rows = [stream.read() for _ in range(number)]
    assert all(isinstance(row, Row) and row.row == row.columns["number"] for row in rows)
    return [row.row for row in rows if isinstance(row, Row)]


@pytest.mark.parametrize("name", ["endless", "Skippable", "Hearing"])
def test_a_stream_opened_again_goes_on_at_its_place(name: str) -> None:
    stream = RowStream(source(name), seed=0)
    assert read(stream, 3) == [0, 1, 2]
    again = RowStream(source(name), seed=0)
    again.skip_to(stream.place)
    assert read(again, 2) == [3, 4]


def test_a_stream_that_has_no_row_for_a_while_when_it_is_opened_again_is_waited_for() -> None:
    stream, signs = RowStream(source("halting"), seed=0), list[int]()
    stream.skip_to(2, lambda: signs.append(stream.place))
    assert signs == [0, 1], "a sign of life for each wait"
    assert stream.place == 2


def test_a_stream_that_can_skip_reads_nothing_of_what_it_skips() -> None:
    stream = RowStream(source("Skippable"), seed=0)
    stream.skip_to(10**12)
    assert read(stream, 1) == [10**12]


def test_a_stream_may_have_no_row_at_the_moment_and_end() -> None:
    stream = RowStream(source("halting"), seed=0)
    found = [stream.read() for _ in range(7)]
    assert found[0] is found[2] is found[4] is None
    assert found[6] is ENDED
    assert stream.place == 3


def test_a_stream_that_is_shorter_than_before_says_so() -> None:
    with pytest.raises(UserError, match="has 3 rows, and 4 were read"):
        RowStream(source("three"), seed=0).skip_to(4)


def test_the_start_of_a_stream_is_a_batch_and_no_row_more() -> None:
    data = load_stream_start(DataConfig(train=source("endless", options={"start": 0})), 4)
    assert [row.columns["number"] for row in data.train] == [0, 1, 2, 3]
    assert (data.num_read, data.held_out) == (4, [])
    with pytest.raises(UserError, match="ended after 3 rows, and a batch takes 4"):
        load_stream_start(DataConfig(train=source("halting")), 4)


def test_a_column_to_rename_that_the_first_rows_lack_is_an_error_before_the_run() -> None:
    config = SourceConfig(name=f"{HERE}:endless", columns={"prompt": "questoin"}, stream=True)
    with pytest.raises(UserError, match="no column 'questoin'") as error:
        load_stream_start(DataConfig(train=config), 2)
    assert "question" in str(error.value.hint)


def test_files_are_streams_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\nno row\n')
    config = SourceConfig(name=str(tmp_path / "rows.jsonl"), stream=True)
    stream = RowStream(config, seed=0)
    assert [stream.read(), stream.read()] == [Row(row=i, prompt=p, columns={}) for i, p in enumerate("ab")]
    with pytest.raises(UserError, match=r"rows.jsonl, line 3 is not JSON"):
        stream.read()


def test_a_table_without_end_is_an_error_and_no_hang() -> None:
    config = SourceConfig(name=f"{HERE}:endless", columns={"prompt": "question"})
    with pytest.raises(UserError, match=f"gave {MOST_UNSIZED:,} rows and goes on") as error:
        load_data(DataConfig(train=config))
    assert "data.train.stream=true" in str(error.value.hint)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"held_out_share": 0.1}, "cannot be taken of a stream"),
        ({"order": OrderConfig(name="mine.py:Order")}, "both say which row comes next"),
        ({"order": OrderConfig(name="in_order", options={"epochs": 2})}, "a stream has no epochs"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(train=SourceConfig(name="a.py:b", stream=True), **fields)


def test_a_task_is_no_stream() -> None:
    with pytest.raises(UserError, match="are known, and no stream"):
        RowStream(SourceConfig(name="count", stream=True), seed=0)


def test_several_tables_are_no_stream() -> None:
    parts = (PartConfig(name="a.jsonl"), PartConfig(name="b.jsonl"))
    with pytest.raises(ConfigError, match="cannot be read as one stream"):
        SourceConfig(name="mixture", parts=parts, stream=True)
