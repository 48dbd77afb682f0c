"""Objects by their written names: in modules, in files, and sent along as bytes."""

import pickle
from fractions import Fraction
from math import gcd
from pathlib import Path

import pytest

from dora_rl.core.errors import UserError
from dora_rl.core.named import load_named


def test_a_module_and_a_file_have_objects_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def double(x):\n    return 2 * x\n")
    assert load_named("math:gcd") is gcd
    assert load_named("math.gcd") is gcd
    assert load_named(f"{file}:double")(4) == 8


def test_an_object_sent_along_is_put_together_from_its_bytes() -> None:
    assert load_named("object:half", {"half": pickle.dumps(Fraction(1, 2))}) == Fraction(1, 2)


def test_an_object_that_was_not_sent_is_said_to_belong_to_the_program_that_started_the_run() -> None:
    with pytest.raises(UserError, match="object of the Python program that started the run") as raised:
        load_named("object:half", {"other": b""})
    assert "dora_rl.resume" in str(raised.value.hint)


def test_bytes_that_cannot_be_put_together_are_a_sentence() -> None:
    with pytest.raises(UserError, match="'object:half' cannot be put together in this process"):
        load_named("object:half", {"half": b"\x80"})
