"""Costs come out of a log as they went in."""

import subprocess
import sys

import pytest

from dora_rl.bench.schedules.costs import fit_costs, measured_costs
from dora_rl.bench.schedules.machine_use import used_s
from dora_rl.bench.schedules.spans import read_facts
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.errors import UserError
from dora_rl.core.history import Event
from dora_rl.core.instance_spec import InstanceSpec

ROUND_S, ROW_S, START_S = 0.01, 0.002, 0.05
FIXED_S, TOKEN_S, PUBLISH_S, LOAD_S, SCORE_S = 0.3, 0.001, 0.125, 0.25, 0.0625
LENGTHS = ((4, 9, 20), (12, 3, 33), (5, 40, 6), (17, 8, 25))
PROMPT = 7


def test_costs_are_found_again() -> None:
    features = [(1.0, 3.0), (2.0, 1.0), (4.0, 9.0)]
    found = fit_costs(features, [0.5 * a + 0.25 * b for a, b in features])
    assert found == pytest.approx((0.5, 0.25))


def test_no_cost_is_negative_and_the_whole_is_kept() -> None:
    features, seconds = [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [3.0, 2.0, 1.0]
    found = fit_costs(features, seconds)
    assert min(found) >= 0
    assert sum(a * found[0] + b * found[1] for a, b in features) == pytest.approx(sum(seconds))


def test_a_synchronous_log_gives_the_costs_it_was_made_with() -> None:
    costs = measured_costs(read_facts(_synchronous_log()))
    assert costs.round_s == pytest.approx(ROUND_S, rel=1e-6)
    assert costs.row_s == pytest.approx(ROW_S, rel=1e-6)
    assert costs.kv_token_s == pytest.approx(0.0, abs=1e-9)
    assert costs.start_s == pytest.approx(START_S, rel=1e-6)
    assert costs.train_fixed_s == pytest.approx(FIXED_S, rel=1e-6)
    assert costs.train_token_s == pytest.approx(TOKEN_S, rel=1e-6)
    assert costs.publish_s == pytest.approx(PUBLISH_S)
    assert costs.load_s == pytest.approx(LOAD_S)
    assert costs.score_s == pytest.approx(SCORE_S)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_processor_time_is_that_of_this_process_and_its_children() -> None:
    before = used_s()
    assert before is not None
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = used_s()
        child.communicate(b"\n")
    assert used is not None
    assert used - before >= 0.45


def test_lengths_are_kept_by_their_streams() -> None:
    facts = read_facts(_synchronous_log())
    assert facts.lengths[0, 2, 1, 0] == LENGTHS[2][1]
    assert [step.tokens for step in facts.steps] == [sum(own) + 3 * PROMPT for own in LENGTHS]


def test_too_few_steps_are_refused() -> None:
    events = _synchronous_log()
    second = [i for i, (event, _) in enumerate(events) if isinstance(event, told.Published)][1]
    with pytest.raises(UserError, match="2 steps"):
        measured_costs(read_facts(events[: second + 1]))


def _synchronous_log() -> list[Event]:
    """One group of three a step, on one instance, at the costs above."""
    now, clock, events = 1.0, 0.0, []
    spec = InstanceSpec(slots=8, kv_tokens=1000)
    joined = told.InstanceJoined(at=now, instance=0, spec=spec)
    events.append((joined, _starts(0)))
    for step, lengths in enumerate(LENGTHS):
        now += len(lengths) * START_S
        begun, running = clock, len(lengths)
        for member, tokens in sorted(enumerate(lengths), key=lambda each: each[1]):
            now += (begun + tokens - clock) * (ROUND_S + running * ROW_S)
            clock, running = begun + tokens, running - 1
            key = 3 * step + member
            # Its KV is of no consequence here, and not a multiple of anything that is.
            ended = told.Ended(
                at=now, instance=0, trajectory=key, tokens=tokens, clock=clock, kv_tokens=(7 * key) % 5
            )
            events.append((ended, []))
            events.append((told.Scored(at=now + SCORE_S, trajectory=key, reward=1.0), []))
        now += SCORE_S
        events.append((told.Tick(at=now), [do.Take(batch=step, groups=(step,), staleness=(0,))]))
        train_s = FIXED_S + TOKEN_S * (sum(lengths) + len(lengths) * PROMPT)
        now += train_s + PUBLISH_S
        load = do.Load(instance=0, version=step + 1)
        events.append((told.Published(at=now, version=step + 1, train_s=train_s), [load]))
        now += LOAD_S
        starts = _starts(step + 1) if step + 1 < len(LENGTHS) else []
        events.append((told.Loaded(at=now, instance=0, version=step + 1), starts))
    return events


def _starts(step: int) -> list[do.Decision]:
    return [
        do.Start(
            instance=0,
            version=step,
            trajectory=3 * step + member,
            group=step,
            epoch=0,
            row=step,
            member=member,
            attempt=0,
            prompt_tokens=PROMPT,
        )
        for member in range(3)
    ]
