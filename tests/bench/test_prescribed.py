"""A run of prescribed lengths has exactly those, whatever is drawn, and the simulator is given them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dora_rl.bench.schedules.costs import measured_costs
from dora_rl.bench.schedules.forecast import predicted_step_s
from dora_rl.bench.schedules.prescribed import prescribed, run_prescribed
from dora_rl.bench.schedules.spans import read_facts
from dora_rl.core.history import History
from dora_rl.engines.requests import Request, Stopping, StreamKey
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup

from ..run.conftest import staged


def length_of(key: StreamKey) -> int:
    return 3 + (5 * key.row + 7 * key.member) % 29


def test_tokens_that_exist_already_count() -> None:
    key = StreamKey(seed=1, row=2, member=1)
    request = Request(
        id=0, version=0, prompt=(1, 2), key=key, stopping=Stopping(max_new_tokens=48), continued=(5, 6, 7)
    )
    stopping = prescribed(request, length_of).stopping
    assert stopping.max_new_tokens == length_of(key) - 3
    assert stopping.is_length_prescribed


@pytest.mark.slow
def test_every_response_has_its_length_and_the_run_can_be_predicted(
    make_setup: Callable[..., RunSetup], tmp_path: Path
) -> None:
    setup = make_setup(steps=4)
    run_prescribed(setup, staged(setup), length_of)
    root = Path(setup.run_directory)
    facts = read_facts(History(LiveLayout(root=root).events))
    assert len(facts.steps) == 4
    for (epoch, row, member, attempt), tokens in facts.lengths.items():
        key = StreamKey(seed=0, epoch=epoch, row=row, member=member, attempt=attempt)
        assert tokens == length_of(key)
    costs = measured_costs(facts)
    predicted = predicted_step_s(root, costs=costs, lengths=facts.lengths, facts=facts)
    assert predicted >= costs.train_fixed_s + costs.publish_s
