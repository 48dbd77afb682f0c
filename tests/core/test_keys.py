"""Every key of a recipe is described by the docstring of its field, and the reference is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.key_reference import SectionKeys, reference, sections

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
EVERY = list(sections(Recipe))
CONTINUES_A_NAME = {"it", "its", "of", "that", "they", "this"}


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference(Recipe), "run `make docs`"


@pytest.mark.parametrize("section", EVERY, ids=lambda each: each.title)
def test_every_key_is_described_by_a_sentence_that_stands_alone(section: SectionKeys) -> None:
    assert len(section.meaning.split()) >= 3
    for key in section.keys:
        words = key.meaning.split()
        assert len(words) >= 3, f"{section.title}: {key.name} needs a docstring"
        assert words[0].lower() not in CONTINUES_A_NAME, f"{key.name}: {key.meaning}"
        assert key.type != "anything"


def test_keys_are_named_as_a_recipe_writes_them() -> None:
    found = {f"{each.path}.{key.name}" for each in EVERY for key in each.keys}
    assert {
        ".steps",
        "trainer.gradient_checkpointing",
        "algorithm.loss.clip_high",
        "rewards.function",
    } <= found


def test_a_bound_and_a_default_are_part_of_what_is_told() -> None:
    (optimizer,) = (each for each in EVERY if each.path == "optimizer")
    told = {key.name: (key.type, key.default) for key in optimizer.keys}
    assert told["learning_rate"] == ("a number at least 0", "1e-6")
    assert told["max_grad_norm"] == ("a number above 0 or null", "1.0")


def test_the_command_needs_no_torch() -> None:
    code = (
        "import sys; from dora_rl.cli.main import app; app(['keys', 'optimizer'], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    called = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert called.returncode == 0, called.stderr
    assert "learning_rate_schedule" in called.stdout


def test_an_unknown_section_is_answered_with_the_nearest() -> None:
    code = "from dora_rl.cli.entry import main; main()"
    called = subprocess.run(
        [sys.executable, "-c", code, "keys", "optimiser"], capture_output=True, text=True, check=False
    )
    assert called.returncode == 2
    assert "did you mean 'optimizer'?" in called.stderr
