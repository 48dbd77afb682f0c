"""Rows come from many places, keep their numbers, and an epoch's order is a function of (seed, epoch)."""

import builtins
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe.data import DataConfig, PartConfig, SourceConfig
from dora_rl.core.struct_loader import build
from dora_rl.envs.data.rows import Row, read_rows
from dora_rl.envs.data.sources import load_data, load_rows
from dora_rl.envs.data.splits import epoch_order, held_out
from dora_rl.envs.prompt_source import ShuffledRows

from .conftest import ROWS

COLUMNS = {"prompt": "question", "solution": "answer"}


def source(name: object, **choices: Any) -> SourceConfig:
    return SourceConfig(name=str(name), **{"columns": COLUMNS} | choices)


def plain_rows(count: int) -> list[Row]:
    return [Row(row=n, prompt="?", columns={}) for n in range(count)]


def as_table(rows: list[Row]) -> list[dict[str, Any]]:
    return [
        {"question": r.prompt, "answer": r.columns["solution"], "level": r.columns["level"]} for r in rows
    ]


def iterated() -> Iterator[dict[str, Any]]:
    yield from ROWS


def test_json_lines_json_and_python_give_the_same_rows(rows_file: Path, tmp_path: Path) -> None:
    as_json = tmp_path / "rows.json"
    as_json.write_text(json.dumps(ROWS))
    module = tmp_path / "mine.py"
    module.write_text(f"ROWS = {ROWS!r}\ndef rows(limit): return iter(ROWS[:limit])")
    lines = load_rows(source(rows_file), seed=0)
    assert as_table(lines) == ROWS
    assert [row.row for row in lines] == list(range(20))
    assert load_rows(source(as_json), seed=0) == lines
    assert load_rows(source(f"{module}:ROWS"), seed=0) == lines
    assert load_rows(source(f"{module}:rows", options={"limit": 7}), seed=0) == lines[:7]


def test_parquet_gives_the_same_rows(rows_file: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    assert load_rows(source(path), seed=0) == load_rows(source(rows_file), seed=0)
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="is not a parquet file"):
        load_rows(source(path), seed=0)


@pytest.mark.parametrize(
    ("name", "package"), [("rows.parquet", "pyarrow"), ("owner/rows", "datasets"), ("hf:squad", "datasets")]
)
def test_without_its_package_a_source_says_what_to_install(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.parquet").touch()
    importing = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
        return importing(name, *rest, **more)

    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=f"needs the package '{package}'") as error:
        load_rows(source(name), seed=0)
    assert error.value.hint == f"pip install {package}"


def test_a_hub_data_set_is_asked_for_by_name_subset_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, subset: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((name, subset, split))
        if split == "absent":
            raise ValueError("Unknown split 'absent'")
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert len(load_rows(source("owner/rows", subset="main", split="test"), seed=0)) == 20
    assert asked == [("owner/rows", "main", "test")]
    with pytest.raises(UserError, match=r"'owner/rows' cannot be loaded: Unknown split"):
        load_rows(source("owner/rows", split="absent"), seed=0)


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
def test_the_real_package_reads_a_directory(rows_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    found = load_rows(source(f"hf:{rows_file.parent}"), seed=0)
    assert as_table(found) == ROWS


@pytest.mark.parametrize(
    ("table", "columns", "words", "hint"),
    [
        (ROWS, {"prompt": "qestion"}, "no column 'qestion' to read as 'prompt'", "did you mean 'question'?"),
        (ROWS, {}, "no column 'prompt'", "map the column"),
        ([{"prompt": 3}], {}, "neither a string nor a list of messages", "a message is"),
        ([{"prompt": [{"content": "x"}]}], {}, "neither a string nor a list", "a message is"),
        ([{"prompt": "x", "completions": 1}], {}, "has a column 'completions'", "another name"),
        ([{"prompt": "x", "a": object()}], {}, "row 0, column 'a' is not plain data", "use numbers"),
        (["x"], {}, "row 0 is not a mapping", None),
        ([], {}, "has no rows", "a row has a 'prompt'"),
    ],
)
def test_a_wrong_table_is_a_sentence(table: Any, columns: Any, words: str, hint: str | None) -> None:
    with pytest.raises(UserError, match=words) as error:
        read_rows(table, columns, "here")
    assert (hint or "") in (error.value.hint or "")


def test_rows_of_episodes_may_have_no_prompt() -> None:
    rows = read_rows([{"level": 3}, {"prompt": "go", "level": 4}], {}, "here", needs_prompt=False)
    assert [(row.prompt, row.is_conversational, row.columns) for row in rows] == [
        (None, False, {"level": 3}),
        ("go", False, {"level": 4}),
    ]


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("cuont", "no task 'cuont'", "did you mean 'count'?"),
        ("absent.jsonl", "no file absent.jsonl", "check the path"),
        ("tests", "tests has no files of rows", ".jsonl"),
        ("pyproject.toml", "no kind of file that holds rows", ".jsonl"),
        ("json:dumps", None, None),
        ("math:pi", "no iterable of rows but float", "name a list"),
    ],
)
def test_a_wrong_source_is_a_sentence(name: str, words: str | None, hint: str | None) -> None:
    if words is None:
        with pytest.raises(TypeError):
            load_rows(source(name), seed=0)
        return
    with pytest.raises(UserError, match=words) as error:
        load_rows(source(name), seed=0)
    assert error.value.hint is not None
    assert hint is not None
    assert hint in error.value.hint


def test_damage_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "x"}\n{"prompt": \n')
    with pytest.raises(UserError, match="line 2 is not JSON: expecting value at column 11") as error:
        load_rows(source(path, columns={}), seed=0)
    assert "one object a line" in (error.value.hint or "")


def test_a_column_that_only_some_rows_have_is_none_for_the_others(tmp_path: Path) -> None:
    """Also for held-out rows of another file: a reward is called with the same names everywhere."""
    (tmp_path / "a.jsonl").write_text('{"q": "1"}\n{"q": "2", "x": 7, "y": 8}\n')
    (tmp_path / "b.jsonl").write_text('{"q": "3", "w": 9}\n')
    train, held = (
        SourceConfig(name=str(tmp_path / name), columns={"prompt": "q", **more})
        for name, more in (("a.jsonl", {"z": "y"}), ("b.jsonl", {}))
    )
    data = load_data(DataConfig(train=train, held_out=held))
    assert [row.columns for row in data.train] == [
        {"x": None, "z": None, "w": None},
        {"x": 7, "z": 8, "w": None},
    ]
    assert [row.columns for row in data.held_out] == [{"x": None, "z": None, "w": 9}]


def test_renamed_columns_leave_their_old_names() -> None:
    (row,) = read_rows([{"a": "p", "b": 1, "c": 2}], {"prompt": "a", "c": "b"}, "here")
    assert (row.prompt, row.columns) == ("p", {"c": 1})


@given(st.integers(1, 200), st.integers(), st.integers(0, 50))
def test_an_epochs_order_is_a_permutation_that_depends_on_seed_and_epoch_alone(
    num_rows: int, seed: int, epoch: int
) -> None:
    order = epoch_order(num_rows, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(num_rows))
    assert order == epoch_order(num_rows, seed=seed, epoch=epoch)


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(st.integers(1, 40), st.integers(0, 9), st.integers(0, 3), st.data())
def test_a_resumed_run_continues_the_order(num_rows: int, seed: int, epoch: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, num_rows))
    stream = ShuffledRows(num_rows, seed=seed)
    stream.offered(range(epoch * num_rows + position))
    following = stream.choose(num_rows)
    ours = epoch_order(num_rows, seed=seed, epoch=epoch) + epoch_order(num_rows, seed=seed, epoch=epoch + 1)
    assert following == ours[position : position + num_rows]


@given(st.integers(2, 200), st.floats(0, 0.99), st.integers())
def test_held_out_rows_are_disjoint_complete_and_keep_their_numbers(
    num_rows: int, share: float, seed: int
) -> None:
    rows = plain_rows(num_rows)
    train, kept = held_out(rows, share=share, seed=seed)
    assert sorted(row.row for row in train + kept) == list(range(num_rows))
    assert abs(len(kept) - share * num_rows) <= 1
    assert bool(kept) == bool(share)
    assert train
    assert (train, kept) == held_out(rows, share=share, seed=seed)


def test_held_out_by_file_or_by_share_but_not_both(rows_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "test.jsonl"
    other.write_text(json.dumps(ROWS[0]))
    by_share = load_data(DataConfig(train=source(rows_file), held_out_share=0.25))
    assert (len(by_share.train), len(by_share.held_out)) == (15, 5)
    by_file = load_data(DataConfig(train=source(rows_file), held_out=source(other)))
    assert (len(by_file.train), len(by_file.held_out)) == (20, 1)
    with pytest.raises(ConfigError, match="both say which rows"):
        DataConfig(train=source(rows_file), held_out=source(other), held_out_share=0.1)


def test_a_recipes_tree_builds_the_config() -> None:
    tree = {"train": {"name": "rows.jsonl", "columns": {"prompt": "q"}}, "held_out_share": 0.1}
    config = build(DataConfig, tree, "recipe")
    assert config.train.columns == {"prompt": "q"}
    with pytest.raises(ConfigError, match="unknown key 'held_out_shar'"):
        build(DataConfig, {"train": {"name": "x"}, "held_out_shar": 0.1}, "recipe")


def test_numbers_and_arrays_of_numpy_are_plain_data() -> None:
    table = [{"prompt": "x", "n": np.int64(5), "is": np.bool_(True), "half": np.float32(0.5), "a": np.eye(2)}]
    (row,) = read_rows(table, {}, "table")
    assert row.columns == {"n": 5, "is": True, "half": 0.5, "a": [[1.0, 0.0], [0.0, 1.0]]}
    assert type(row.columns["n"]) is int


# --- directories and several tables --------------------------------------------------------------


def test_a_directory_is_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for number, name in enumerate(("a.jsonl", "b/c.jsonl", "d.jsonl")):
        (tmp_path / name).write_text(json.dumps({"prompt": "p", "number": number}) + "\n")
    (tmp_path / "README.md").touch()
    rows = load_rows(SourceConfig(name=str(tmp_path)), seed=0)
    assert [row.columns["number"] for row in rows] == [0, 1, 2]
    (tmp_path / "more.json").write_text("[]")
    with pytest.raises(UserError, match=r"files of several kinds \(.json, .jsonl\)"):
        load_rows(SourceConfig(name=str(tmp_path)), seed=0)


def test_a_directory_without_rows_says_what_would_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no files of rows") as error:
        load_rows(SourceConfig(name=str(tmp_path)), seed=0)
    assert ".parquet" in str(error.value.hint)


def test_a_directory_of_parquet_files_is_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for part in range(2):
        table = arrow.Table.from_pylist(ROWS[10 * part : 10 * part + 10])
        parquet.write_table(table, tmp_path / f"train-{part:05}-of-00002.parquet")
    assert as_table(load_rows(source(tmp_path), seed=0)) == ROWS


def test_what_save_to_disk_wrote_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": table, "test": table.select(range(3))}).save_to_disk(tmp_path / "several")
    assert as_table(load_rows(source(tmp_path / "one"), seed=0)) == ROWS
    assert len(load_rows(source(tmp_path / "several", split="test"), seed=0)) == 3
    with pytest.raises(UserError, match="has no split 'validation'") as error:
        load_rows(source(tmp_path / "several", split="validation"), seed=0)
    assert "train, test" in str(error.value.hint)


def mixture(tmp_path: Path, *weights: float | None) -> DataConfig:
    parts = []
    for number, weight in enumerate(weights):
        path = tmp_path / f"table{number}.jsonl"
        rows = [{"prompt": "p", "number": i} for i in range(3 + number)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        parts.append(PartConfig(name=str(path), weight=weight))
    return DataConfig(train=SourceConfig(name="mixture", parts=tuple(parts)))


def test_rows_of_several_tables_are_numbered_through_and_say_where_they_are_from(tmp_path: Path) -> None:
    config = mixture(tmp_path, None, None)
    data = load_data(config)
    assert [row.row for row in data.train] == list(range(7))
    assert [row.columns["data_source"] for row in data.train] == ["table0"] * 3 + ["table1"] * 4
    assert data.part_ends == (3, 7)
    assert data.part_rows(config, [0, 2, 3, 6]) == (2, 2)
    with pytest.raises(UserError, match="no row of 'table0' is left"):
        data.part_rows(config, [5])


def test_weights_are_given_to_all_tables_or_to_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some tables of data.train have a weight"):
        mixture(tmp_path, 1.0, None)


# --- rows that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b'{"prompt": "a"}\n{"prompt": "\xe9"}\n',
            r"rows.jsonl, line 2 is not UTF-8: byte 0xe9 at position 12",
        ),
        (b'{"prompt": "\\ud83d"}\n', r"row 0, column 'prompt' is no text: .ud83d is half of a character"),
        (b'{"prompt": "a", "b": ["\\udc00"]}\n', r"row 0, column 'b' is no text"),
        (b'{"prompt": [{"role": "user"}]}\n', r"row 0: message 0 of the prompt, by 'user', has no 'content'"),
        (b'{"prompt": [{"role": "user", "content": 3}]}\n', "a 'content' that is no text"),
        (
            b'{"prompt": "a", "b": ' + b"[" * 100 + b"]" * 100 + b"}\n",
            r"column 'b' is nested more than 64 levels",
        ),
        (b'{"prompt": "a", "b": ' + b"[" * 10**6 + b"]" * 10**6 + b"}\n", "line 1 is nested too deeply"),
    ],
)
def test_a_wrong_row_is_named_with_its_place(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=words):
        load_rows(SourceConfig(name=str(tmp_path / "rows.jsonl")), seed=0)


def test_a_file_may_begin_with_a_byte_order_mark_and_calls_need_no_content(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    chat = [{"role": "user", "content": "a"}, call]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"prompt": chat}).encode())
    assert load_rows(SourceConfig(name=str(path)), seed=0)[0].prompt == chat


@pytest.mark.parametrize("key", ["options", "subset", "split"])
def test_what_a_table_has_no_use_for_is_refused(rows_file: Path, key: str) -> None:
    value = {"limit": 7} if key == "options" else "other"
    with pytest.raises(UserError, match=f"are a file, which has no use for {key} = ") as error:
        load_rows(source(rows_file, **{key: value}), seed=0)
    assert error.value.hint == f"leave '{key}' out"
    load_rows(source(rows_file), seed=0)
    if key != "options":
        with pytest.raises(UserError, match=f"a built-in task, which has no use for {key}"):
            load_rows(source("letters", **{key: value}), seed=0)


def test_a_list_of_rows_takes_no_options(tmp_path: Path) -> None:
    rows = 'rows = [{"question": "a", "answer": "b"}] * 3'
    (tmp_path / "mine.py").write_text(f"{rows}\ndef made(limit):\n    return rows[:limit]\n")
    with pytest.raises(UserError, match="has no use for options"):
        load_rows(source(f"{tmp_path}/mine.py:rows", options={"limit": 1}), seed=0)
    assert len(load_rows(source(f"{tmp_path}/mine.py:made", options={"limit": 1}), seed=0)) == 1


def test_what_is_said_of_several_tables_at_once_is_refused() -> None:
    parts = (PartConfig(name="a.jsonl"), PartConfig(name="b.jsonl"))
    with pytest.raises(ConfigError, match=r"data\.train\.columns is for one table, and data\.train has 2"):
        SourceConfig(name="mixture", parts=parts, columns={"prompt": "question"})
