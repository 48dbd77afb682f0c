"""`dora eval` says what was answered."""

import pytest

from dora_rl.api.sampled_model import Evaluated
from dora_rl.cli.evaluate import _show, values_of
from dora_rl.core.errors import UserError
from dora_rl.run.sampling.samples import SampleFigures


@pytest.mark.parametrize("is_held_out", [True, False])
def test_rows_that_are_not_held_out_are_said_to_be_those_to_train_on(
    capsys: pytest.CaptureFixture[str], is_held_out: bool
) -> None:
    figures = SampleFigures(
        num_rows=4,
        is_held_out=is_held_out,
        num_samples=1,
        reward=0.5,
        rewards={"right": 0.5},
        pass_rates={"pass@1": 0.5},
        mean_tokens=3.0,
        truncated_share=0.0,
        num_failed=0,
    )
    _show(Evaluated(model="tiny", figures=figures, rows=()), None)
    assert ("none are held out: these are rows of data.train" in capsys.readouterr().out) is not is_held_out


def test_the_model_is_named_by_the_argument_alone() -> None:
    assert values_of(["max_rows=4"]) == {"max_rows": 4}
    with pytest.raises(UserError, match="the model is the command's argument"):
        values_of(["model=tiny"])
