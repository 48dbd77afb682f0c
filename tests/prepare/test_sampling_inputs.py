"""Which rows a model answers when it is tried out, and that it is said whose they are."""

import json
from pathlib import Path

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.data import DataConfig, SourceConfig, TableConfig
from dora_rl.core.struct_loader import build
from dora_rl.prepare.messages import Given
from dora_rl.prepare.sampling_inputs import answered_data, prepare_sampling
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_layout import LiveLayout


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_rows_to_train_on_are_answered_where_none_are_held_out_and_known_as_such(
    tmp_path: Path, model: Path, share: float
) -> None:
    rows = [json.dumps({"prompt": f"{number}:"}) for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    tree = {
        "model": str(model),
        "data": {"train": {"name": str(tmp_path / "rows.jsonl")}, "held_out_share": share},
        "evaluation": {"max_rows": 3},
        "response": {"max_new_tokens": 8},
        "devices": {"kind": "cpu", "memory_gib": 8},
    }
    recipe = build(Recipe, tree, "the recipe of a test")
    (tmp_path / "target").mkdir()
    prepare_sampling(recipe, tmp_path / "target", lambda doing: None, Given(), is_judged=False)
    table = PromptTable.read(LiveLayout(root=tmp_path / "target").prompts)
    assert (len(table.train), len(table.held_out)) == ((0, 3) if share else (3, 0))


def test_of_a_stream_only_rows_held_out_are_answered(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"prompt": "a"}\n')
    stream = SourceConfig(name="no_such_module:endless", stream=True)
    held_out = TableConfig(name=str(tmp_path / "test.jsonl"))
    found = answered_data(DataConfig(train=stream, held_out=held_out), {})
    assert [row.prompt for row in found.held_out] == ["a"]
    with pytest.raises(ConfigError, match="are a stream, and none are held out"):
        answered_data(DataConfig(train=stream), {})
