"""The critic's loss."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.critic import value_loss

number = st.floats(-5, 5)


@given(tokens=st.lists(st.tuples(number, number, number), max_size=8), clip=st.floats(0, 2))
def test_value_loss_equals_the_reference(tokens: list[tuple[float, float, float]], clip: float) -> None:
    values_T, returns_T, old_T = torch.tensor(tokens, dtype=torch.float64).reshape(-1, 3).unbind(1)
    plain = [(v - r) ** 2 / 2 for v, r, _ in tokens]
    held = [(min(max(v, o - clip), o + clip) - r) ** 2 / 2 for v, r, o in tokens]
    larger = [max(pair) for pair in zip(plain, held, strict=True)]
    assert value_loss(values_T, returns_T).tolist() == pytest.approx(plain)
    assert value_loss(values_T, returns_T, old_T, clip).tolist() == pytest.approx(larger, rel=1e-9, abs=1e-9)
