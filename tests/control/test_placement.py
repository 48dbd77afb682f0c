"""Placement: the least KV moves, nothing overfills, and nothing changes that does not pay."""

from itertools import product
from random import Random

import pytest

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.fleet import Cohort, Fleet, Instance, State
from dora_rl.control.ledger import Phase, Trajectory
from dora_rl.control.placement import PlacementPlanner, Situation
from dora_rl.core.instance_spec import InstanceSpec

_FULL, _PACKED = 0.93, 1.1


def make_fleet(*instances: dict[int, list[int]], slots: int = 8, kv_tokens: int = 1000) -> Fleet:
    """Instances given as {version: tokens of each running request}."""
    fleet, key = Fleet(watermark=0.95), 0
    for number, cohorts in enumerate(instances):
        spec = InstanceSpec(slots=slots, kv_tokens=kv_tokens, max_versions=4)
        instance = Instance(instance=number, spec=spec, version=min(cohorts), now=0.0)
        fleet.join(instance)
        for version, requests in cohorts.items():
            if version not in instance.cohorts:
                fleet.hold(instance, version)
            for tokens in requests:
                t = Trajectory(id=key, group=key, member=0, version=version, prompt_tokens=0, tokens=tokens)
                t.phase = Phase.RUNNING
                instance.add(t)
                key += 1
    return fleet


def planner(fleet: Fleet, placement: str = "exclusive", *, load_s: float = 1.0) -> PlacementPlanner:
    lengths = LearnedLengths(prior_tokens=100, max_tokens=1000)
    estimates = Estimates(lengths=lengths, load_s=load_s, move_s=0.1, step_s=0.01)
    return PlacementPlanner(fleet, estimates, placement=placement)  # type: ignore[arg-type]


def situation(
    demands: dict[int, float],
    *,
    backlog: dict[int, int] | None = None,
    horizon_s: float = 100.0,
    slack_s: float = 1e6,
) -> Situation:
    return Situation(
        demands=demands,
        backlog=backlog or {},
        horizon_s=horizon_s,
        slack_s=dict.fromkeys(demands, slack_s),
        longest_s=dict.fromkeys(demands, 1.0),
        parked_s=0.5,
    )


def kept_kv(fleet: Fleet, assignment: dict[int, tuple[int, ...]]) -> float:
    return sum(
        cohort.kv_tokens(instance.clock)
        for instance in fleet
        for version, cohort in instance.cohorts.items()
        if version in assignment[instance.id]
    )


def best_kept_kv(fleet: Fleet, bins: list[tuple[int, ...]], shares: list[int]) -> float:
    """Search over every assignment with these shares."""
    keys = [instance.id for instance in fleet]
    return max(
        kept_kv(fleet, dict(zip(keys, choice, strict=True)))
        for choice in product(bins, repeat=len(keys))
        if [choice.count(b) for b in bins] == shares
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_least_kv_moves_when_instances_change_version(seed: int) -> None:
    rng = Random(seed)
    fleet = make_fleet(*({rng.randint(0, 2): [rng.randint(1, 99)]} for _ in range(5)))
    bins = [(0,), (1,), (2,)]
    shares = rng.choice(([1, 1, 3], [2, 2, 1], [1, 2, 2], [3, 1, 1]))
    assignment = PlacementPlanner._assign(list(fleet), bins, shares)
    assert sorted(map(bins.index, assignment.values())) == sorted(
        i for i, share in enumerate(shares) for _ in range(share)
    )
    assert kept_kv(fleet, assignment) == best_kept_kv(fleet, bins, shares)


@pytest.mark.parametrize("seed", range(60))
def test_with_several_versions_an_instance_the_most_kv_that_could_stay_stays(seed: int) -> None:
    rng = Random(seed)
    fleet = make_fleet(*(
        {version: [rng.randint(1, 99)] for version in rng.sample(range(3), 2)} for _ in range(5)
    ))  # fmt: skip
    bins, shares = [(0,), (1,), (2,)], [2, 2, 1]
    assignment = PlacementPlanner._assign(list(fleet), bins, shares)
    assert kept_kv(fleet, assignment) == best_kept_kv(fleet, bins, shares)


@pytest.mark.parametrize(("slack_s", "most"), [(1.0, _FULL), (1e6, _PACKED)])
@pytest.mark.parametrize("placement", ["auto", "exclusive", "shared"])
@pytest.mark.parametrize("seed", range(40))
def test_moves_go_where_their_version_stays_and_never_overfill(
    seed: int, placement: str, slack_s: float, most: float
) -> None:
    rng = Random(seed)
    fleet = make_fleet(*(
        {version: [rng.randint(1, 250) for _ in range(rng.randint(0, 3))]
         for version in rng.sample(range(4), rng.randint(1, 2))}
        for _ in range(6)
    ))  # fmt: skip
    demands = {version: rng.uniform(1, 1e5) for version in range(4)}
    changes = planner(fleet, placement).plan(situation(demands, backlog={3: 50}, slack_s=slack_s))
    changed = {change.instance.id for change in changes}
    coming: dict[int, list[Trajectory]] = {}
    for change in changes:
        for t, target in change.moves:
            assert t.version in fleet.instances[target].cohorts
            assert t.version not in change.versions
            assert target != change.instance.id
            coming.setdefault(target, []).append(t)
    for target, requests in coming.items():
        instance = fleet.instances[target]
        assert instance.num_running + len(requests) <= instance.spec.slots
        assert instance.kv_tokens + sum(t.tokens for t in requests) <= most * instance.kv_capacity
        leaving = [c for c in changes if c.instance is instance and target in changed]
        assert all(t.version in c.versions for c in leaving for t in requests), "it would have to move on"


def test_a_change_that_does_not_pay_is_not_made() -> None:
    """Requests would have to move, and nothing waits for the new version."""
    fleet = make_fleet({0: [50, 60]}, {0: [70]})
    demands = {0: 100.0, 1: 100.0}
    assert planner(fleet).plan(situation(demands)) == []
    (change,) = planner(fleet).plan(situation(demands, backlog={1: 30}))
    assert (change.instance.id, change.versions) == (1, (1,))
    assert [(t.tokens, target) for t, target in change.moves] == [(70, 0)]


def test_a_change_is_not_made_when_the_weights_would_load_longer_than_they_serve() -> None:
    fleet = make_fleet({0: [50, 60]}, {0: [70]})
    wanted = situation({0: 100.0, 1: 100.0}, backlog={1: 30}, horizon_s=5.0)
    assert planner(fleet, load_s=10.0).plan(wanted) == []
    assert planner(fleet, load_s=1.0).plan(wanted) != []


def test_an_instance_is_not_emptied_when_its_requests_have_nowhere_to_go() -> None:
    fleet = make_fleet({0: [450, 450]}, {0: [450]})
    assert planner(fleet).plan(situation({0: 1.0, 1: 1e6}, backlog={1: 100})) == []


def test_requests_with_time_to_spare_are_packed_beyond_what_fits_so_that_others_can_start() -> None:
    """1050 tokens of KV on two instances of 1000: one of them is freed, what does not fit waits a while."""
    fleet = make_fleet({0: [350, 350]}, {0: [350]})
    demands, backlog = {0: 1.0, 1: 1e6}, {1: 100}
    (change,) = planner(fleet).plan(situation(demands, backlog=backlog))
    assert (change.instance.id, [target for _, target in change.moves]) == (1, [0])
    assert planner(fleet).plan(situation(demands, backlog=backlog, slack_s=1.2)) == []


def test_free_slots_without_kv_are_no_room_for_those_who_wait() -> None:
    """The one instance of the new version has five free slots and no KV: another is worth its moves."""
    fleet = make_fleet({0: [50]}, {0: [60]}, {1: [300, 300, 300]})
    demands, backlog = {0: 100.0, 1: 2000.0}, {1: 4}
    (change,) = planner(fleet).plan(situation(demands, backlog=backlog))
    assert change.versions == (1,)
    fleet = make_fleet({0: [50]}, {0: [60]}, {1: [30, 30, 30]})
    assert planner(fleet).plan(situation(demands, backlog=backlog)) == []


def test_an_idle_instance_changes_at_once() -> None:
    fleet = make_fleet({0: [10]}, {0: []})
    (change,) = planner(fleet).plan(situation({0: 10.0, 1: 1000.0}))
    assert (change.instance.id, change.versions, change.moves) == (1, (1,), [])


@pytest.mark.parametrize("state", [State.LENT, State.RETURNING, State.LOADING])
def test_an_instance_that_is_away_is_left_alone(state: State) -> None:
    fleet = make_fleet({0: [10]}, {0: []})
    fleet.instances[1].state = state
    changes = planner(fleet).plan(situation({0: 10.0, 1: 1000.0}, backlog={1: 50}))
    assert all(change.instance.id != 1 for change in changes)


def test_requests_on_their_way_pin_their_instance() -> None:
    fleet = make_fleet({0: [10]}, {0: []})
    fleet.instances[1].arriving = 1
    changes = planner(fleet).plan(situation({0: 10.0, 1: 1000.0}, backlog={1: 50}))
    assert all(change.instance.id != 1 for change in changes)


def test_shared_placement_puts_every_version_on_every_instance() -> None:
    fleet = make_fleet({0: [10]}, {0: [10]})
    changes = planner(fleet, "shared").plan(situation({0: 10.0, 1: 10.0}))
    assert [change.versions for change in changes] == [(0, 1), (0, 1)]
    assert all(not change.moves for change in changes)


def test_a_cohort_counts_what_its_requests_hold() -> None:
    fleet = make_fleet({0: [10, 20]})
    cohort = fleet.instances[0].cohorts[0]
    assert isinstance(cohort, Cohort)
    assert cohort.kv_tokens(0.0) == 30
    assert cohort.kv_tokens(5.0) == 40
