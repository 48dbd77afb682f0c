"""What an engine cannot do changes what control decides: it falls back, and the laws stay."""

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told

from .bench import Bench, one, only


def pressed(**spec: bool) -> tuple[do.Start, list[do.Decision]]:
    """A request on an instance that runs out of KV, while another of its version has room."""
    bench = Bench(max_staleness=0)
    bench.join(0, **spec)
    (start, *_) = only(bench.tick(), do.Start)
    bench.join(1, **spec)
    bench.tell(told.LoadReport, instance=0, clock=5.0, kv_tokens=10, step_s=0.01)
    bench.tell(told.LoadReport, instance=1, clock=0.0, kv_tokens=0, step_s=0.01)
    return start, bench.press(start.instance)


def test_a_request_moves_with_its_kv_where_engines_can() -> None:
    start, decisions = pressed()
    move = one(decisions, do.Move)
    assert (move.trajectory, move.with_kv) == (start.trajectory, True)


def test_without_kv_moves_a_request_moves_with_its_tokens_alone() -> None:
    _, decisions = pressed(moves_kv=False)
    assert not one(decisions, do.Move).with_kv


def test_without_kv_moves_and_continuation_a_request_starts_again_elsewhere() -> None:
    start, decisions = pressed(moves_kv=False, continues=False)
    assert not only(decisions, do.Move)
    abort = one(decisions, do.Abort)
    again = [each for each in only(decisions, do.Start) if each.trajectory == start.trajectory]
    assert (abort.instance, abort.trajectory) == (0, start.trajectory)
    assert [(each.instance, each.generated_tokens, each.attempt) for each in again] == [
        (1, 0, start.attempt + 1)
    ]
    assert again[0].version == start.version


def test_a_dead_engines_request_goes_on_or_starts_again_as_it_can() -> None:
    for continues in (True, False):
        bench = Bench(max_staleness=1)
        bench.join(0, continues=continues)
        (start, *_) = only(bench.tick(), do.Start)
        bench.join(1, continues=continues)
        bench.tell(told.LoadReport, instance=0, clock=5.0, kv_tokens=10, step_s=0.01)
        decisions = bench.tell(told.InstanceLost, instance=0, reason="killed")
        (again,) = [each for each in only(decisions, do.Start) if each.trajectory == start.trajectory]
        assert (again.generated_tokens > 0) is continues
        assert again.attempt == start.attempt + (not continues)


def test_an_engine_of_one_version_takes_a_new_one_only_in_place_of_the_old() -> None:
    for max_versions in (1, 3):
        bench = Bench(max_staleness=2, groups=1, group_size=1)
        bench.join(0, max_versions=max_versions)
        bench.tick()
        bench.run_steps(3)
        loads = bench.made(do.Load)
        assert loads
        held = {0}
        for load in loads:
            held = (held - set(load.drop)) | {load.version}
            if max_versions == 1:
                assert held == {load.version}
