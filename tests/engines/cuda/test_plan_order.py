"""Plans that overlap on lanes: whatever two of them both touch, the later one waits for the earlier."""

from collections import defaultdict, deque

from hypothesis import given
from hypothesis import strategies as st

from dora_rl.engines.config import Limits
from dora_rl.engines.native.cuda.plan_order import PlanOrder
from dora_rl.engines.native.scheduling.scheduler import Scheduler
from dora_rl.engines.native.scheduling.step_plan import CopyBlock, ParkBlocks, Plan, Sampled, UnparkBlocks
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Request, Stopping, StreamKey

EOS = 0
NUM_LANES = 4


class Clocks:
    """Which plans each lane's next one comes behind, and which plan touched what last."""

    def __init__(self, block_size: int) -> None:
        self.ordering = PlanOrder(range(NUM_LANES))
        self.behind: list[set[int]] = [set() for _ in range(NUM_LANES)]
        self.touched: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.tables: dict[int, list[int]] = {}
        self.block_size = block_size
        self.num_plans = 0

    def launch(self, plan: Plan, lane: int) -> None:
        """Every earlier plan that touched what this one touches must be behind it."""
        behind = self.behind[lane]
        for other in self.ordering.put(plan, lane):
            behind |= self.behind[other]
        self.num_plans += 1
        for thing in self.things(plan):
            missing = set(self.touched[thing]) - behind - {self.num_plans}
            assert not missing, f"plan {self.num_plans} on lane {lane} overtakes {missing} at {thing}"
            self.touched[thing].append(self.num_plans)
        behind.add(self.num_plans)

    def things(self, plan: Plan) -> list[tuple[str, int]]:
        """Blocks and slots that a plan reads or writes."""
        blocks: list[int] = []
        for move in plan.moves:
            match move:
                case CopyBlock():
                    blocks += (move.source, move.target)
                case ParkBlocks() | UnparkBlocks():
                    blocks += move.blocks
        for table in plan.tables:
            self.tables[table.slot] = self.tables.get(table.slot, [])[: table.first] + list(table.blocks)
        for row in plan.rows:
            blocks += self.tables[row.slot][: -(-(row.start + row.num_tokens) // self.block_size)]
        slots = [row.slot for row in plan.rows] + [each.slot for each in (*plan.tables, *plan.entrants)]
        return [("block", each) for each in set(blocks)] + [("slot", each) for each in set(slots)]


def lane_of(plan: Plan) -> int:
    """As the executor deals them: versions that only decode have lanes of their own."""
    if plan.version is None or any(len(row.tokens) > 1 for row in plan.rows):
        return 0
    return 1 + plan.version % (NUM_LANES - 1)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 9), st.integers(1, 20), st.sampled_from([None, 1]), st.booleans()
    ),
    min_size=2,
    max_size=10,
)
LIMITS = st.builds(
    Limits,
    num_blocks=st.integers(15, 40),
    block_size=st.sampled_from([2, 3, 4]),
    num_host_blocks=st.sampled_from([0, 100]),
    max_running=st.integers(2, 6),
    step_tokens=st.integers(6, 20),
    max_positions=st.just(30),
)


@given(
    limits=LIMITS,
    wanted=REQUESTS,
    depth=st.integers(1, 6),
    tokens=st.lists(st.integers(0, 4), min_size=16, max_size=16),
    aborted=st.dictionaries(st.integers(0, 30), st.integers(0, 9), max_size=3),
)
def test_no_plan_overtakes_another_that_touches_the_same(
    limits: Limits,
    wanted: list[tuple[int, int, int, int | None, bool]],
    depth: int,
    tokens: list[int],
    aborted: dict[int, int],
) -> None:
    scheduler, clocks = Scheduler(limits, Stops([EOS])), Clocks(limits.block_size)
    live = set()
    for number, (version, num_prompt, num_new, group, holds_turn) in enumerate(wanted):
        scheduler.submit(
            Request(
                id=number,
                version=version,
                prompt=tuple(range(1, 1 + num_prompt)),
                key=StreamKey(seed=1, row=number),
                stopping=Stopping(max_new_tokens=num_new),
                group=group,
                holds_turn=holds_turn,
            )
        )
        live.add(number)
    under_way: deque[Plan] = deque()
    for step in range(1000):
        if aborted.get(step) in live:
            live.remove(aborted[step])
            scheduler.abort(aborted[step])
        plan = scheduler.plan()
        if plan is not None:
            clocks.launch(plan, lane_of(plan))
            under_way.append(plan)
        if under_way and (plan is None or len(under_way) >= depth):
            oldest = under_way.popleft()
            num = sum(row.is_sampled for row in oldest.rows)
            drawn = tuple(tokens[(step + index) % len(tokens)] for index in range(num))
            sampled = Sampled(tokens=drawn, logprobs=(0.0,) * num, cut_logprobs=(0.0,) * num)
            for ended in scheduler.commit(oldest, sampled):
                live.remove(ended.id)
                if ended.is_held:
                    scheduler.abort(ended.id)
        elif plan is None:
            return
    raise AssertionError("starving")
