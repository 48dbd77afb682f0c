"""Models that are none are told before anything is imported, with what to give instead."""

from pathlib import Path

import pytest

from dora_rl.core.errors import ModelError
from dora_rl.prepare.recipe_names import check_model_name


def complaint(name: object) -> tuple[str, str]:
    with pytest.raises(ModelError) as caught:
        check_model_name(str(name))
    return caught.value.message, caught.value.hint or ""


def test_a_run_is_answered_with_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (5, 10):
        (tmp_path / "checkpoints" / f"step_{step:05}").mkdir(parents=True)
    message, hint = complaint(tmp_path)
    assert "is no model directory" in message
    assert hint == f"give a checkpoint of the run: {tmp_path / 'checkpoints' / 'step_00010'}"


def test_a_file_of_weights_is_answered_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    message, hint = complaint(tmp_path / "model.safetensors")
    assert "is a file, not a model directory" in message
    assert hint == f"give its directory: {tmp_path}"


@pytest.mark.parametrize("name", ["./absent", "~/absent", "/absent", "a/b/c", "absent"])
def test_a_path_is_not_looked_for_on_the_hub(name: str) -> None:
    assert complaint(name)[0] == f"there is no model '{name}'"


def test_a_name_the_hub_could_have_is_left_to_it() -> None:
    check_model_name("owner/name")
