"""A timeline agrees with the run it is drawn from, read live or from the event log."""

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from msgspec.structs import replace

from dora_rl.core.history import History, HistoryWriter
from dora_rl.observe.pictures.look import save
from dora_rl.observe.pictures.timeline_picture import Panel, draw_timelines
from dora_rl.observe.timeline import Timeline, TimelineSpan, Tracker
from dora_rl.sim.simulated_run import Result, simulate
from dora_rl.sim.simulation_setup import complete, resolve

SMALL = ("batch.groups=8", "group_size=4", "gpus=12", "tensor_parallel=1", "slots=16", "rows=100", "steps=5",
         "decode_floor_s=0.1")  # fmt: skip


def traced(*assignments: str) -> tuple[Result, Timeline]:
    tracker = Tracker()
    recipe = complete(resolve(assignments=[*SMALL, *assignments]))
    return simulate(recipe, [tracker.watch]), tracker.timeline()


@pytest.mark.parametrize("schedule", ["sync", "one_step_off", "partial", "dora_onset", "dora"])
@pytest.mark.parametrize("mean_turns", [1, 3])
def test_everything_that_starts_ends(schedule: str, mean_turns: int) -> None:
    result, timeline = traced(f"schedule={schedule}", f"mean_turns={mean_turns}")
    assert len(timeline.specs) == result.instances
    for loads in timeline.loads.values():
        running: dict[int, int] = {}
        for load in loads:
            running[load.version] = load.running
            assert load.running >= 0
            # A request whose environment replied goes back to its KV, and waits there if the slots are taken.
            assert sum(running.values()) <= 16 or mean_turns > 1
        assert not any(running.values()), "the run ends when everything is trained on"


def test_the_trainer_trains_or_waits_and_never_both() -> None:
    result, timeline = traced("rollout_gpus=4", "schedule=dora")
    assert [span.what for span in timeline.trained] == list(range(result.steps))
    assert [span.end for span in timeline.trained] == timeline.published
    spans = sorted((span.begin, span.end) for span in (*timeline.trained, *timeline.waited))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    waited = {
        why: sum(s.end - s.begin for s in timeline.waited if s.what == why) for why in ("starved", "window")
    }
    assert waited["window"] == pytest.approx(result.window_stall_s)
    assert waited["starved"] <= result.starved_s + 1e-6


def test_elastic_instances_are_seen_to_train() -> None:
    _, timeline = traced("schedule=sync")
    assert {span.what for span in timeline.lent} == set(timeline.specs)
    for span in timeline.lent:
        assert any(train.begin <= span.begin <= train.end for train in timeline.trained)


def test_lost_instances_are_down_until_they_are_back() -> None:
    _, timeline = traced("rollout_gpus=4", "instance_deaths_per_hour=1", "restart_s=5", "decode_floor_s=2")
    assert timeline.down
    assert all(
        span.end - span.begin == pytest.approx(5.0) for span in timeline.down if span.end < timeline.end
    )


def test_the_event_log_gives_the_same_timeline(tmp_path: Path) -> None:
    recipe = complete(resolve(assignments=[*SMALL, "rollout_gpus=4"]))
    tracker = Tracker()
    with HistoryWriter(tmp_path / "run.jsonl", recipe) as log:
        simulate(recipe, [log.watch, tracker.watch])
    read = Tracker()
    for event, decisions in History(tmp_path / "run.jsonl"):
        read.watch(event, decisions)
    assert read.timeline() == tracker.timeline()


def test_a_timeline_becomes_a_picture(tmp_path: Path) -> None:
    panels = []
    for schedule in ("sync", "dora"):
        result, timeline = traced(f"schedule={schedule}")
        panels.append(Panel(title=schedule, gpus=result.gpus, timeline=timeline, begin=timeline.published[0]))
    picture = save(draw_timelines(panels, 60.0, title="two schedules"), tmp_path / "deep" / "timeline.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("length_s", "unit"), [(60.0, "seconds"), (3600.0, "minutes")])
@pytest.mark.parametrize("num_steps", [8, 25, 70])
def test_the_steps_of_a_picture_have_labels_that_fit_and_times_in_a_fitting_unit(
    length_s: float, unit: str, num_steps: int
) -> None:
    _, timeline = traced("rollout_gpus=4")
    each = length_s / num_steps
    spans = [TimelineSpan(begin=i * each, end=(i + 1) * each, what=1000 + i) for i in range(num_steps)]
    panel = Panel(title="x", gpus=12, timeline=replace(timeline, trained=spans, waited=[], published=[]))
    fig = draw_timelines([panel], length_s, title="x")
    (axes,) = fig.axes
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw(renderer)
    boxes = [text.get_window_extent(renderer) for text in axes.texts if text.get_text()]
    assert len(boxes) == (num_steps if num_steps < 40 else 0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert axes.get_xlabel().startswith(unit)
    assert axes.get_xlim()[1] == pytest.approx(length_s if unit == "seconds" else length_s / 60)
    if num_steps == 8:
        assert axes.texts[0].get_text() == "step 1001", "batch 1000 is step 1001"
