"""`dora bench control` says how far it is."""

import json
from collections.abc import Callable
from typing import Any

from dora_rl.bench.control_speed import FleetScope, bench_control

Dora = Callable[..., Any]


def test_every_part_is_told_as_it_is_measured_and_the_result_stays_alone(dora: Dora) -> None:
    called = dora("bench", "control", "--quick", "--json")
    assert called.exit_code == 0
    assert len(json.loads(called.out)["sizes"]) == 3
    lines = called.err.splitlines()
    assert [line.split()[0] for line in lines] == [f"{number}/5" for number in range(1, 6)]
    assert lines[0].endswith("; next 32 instances")
    assert lines[-1].startswith("5/5 lines of Python: ")


def test_a_long_bench_says_first_how_long_it_takes_and_how_to_have_it_shorter() -> None:
    said: list[str] = []
    small = FleetScope(
        instances=64, steps=2, rebalance_instances=16, rebalance_trajectories=1600, counted_instances=(4, 8)
    )
    bench_control(small, said.append)
    assert said[0].startswith("takes about 0.3 s of one free core, most of it for 64 instances")
    assert "--quick" in said[0]
    assert len(said) == 6
