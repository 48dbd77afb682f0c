"""Whatever the requests, sizes and delays: every token is computed from the right KV, and nothing starves.

The executor here keeps tokens where a real one keeps keys and values, and draws each token as a function of
everything it reads back through the slot's table. One wrong block, copy, turn or order changes the tokens.
"""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.errors import ConfigError
from dora_rl.engines.config import Limits
from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.scheduling.scheduler import Scheduler
from dora_rl.engines.native.scheduling.step_plan import (
    CopyBlock,
    DiscardBlocks,
    ParkBlocks,
    Plan,
    PlannedRow,
    Sampled,
    UnparkBlocks,
)
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.scheduling.turns import VersionTurns
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.engines.streams import Words, stream_of

EOS = 0


def draw(version: int, stream: Words, context: list[int]) -> int:
    """Mostly as after the same two tokens before, so that guesses come true; else by everything there is."""
    whole = hash((version, stream, tuple(context)))
    return whole % 17 if whole % 4 == 0 else 1 + hash((version, *context[-2:])) % 7


def expected(request: Request, context: list[int], max_tokens: int) -> list[int]:
    """What a request generates all by itself."""
    tokens = list(context)
    while len(tokens) < max_tokens and (len(tokens) == len(context) or tokens[-1] != EOS):
        tokens.append(draw(request.version, stream_of(request.key), tokens))
    return tokens[len(context) :]


class CellExecutor:
    """Tokens in cells in place of KV in blocks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cells = [[-1] * limits.block_size for _ in range(limits.num_blocks + 1)]
        self.tables: dict[int, list[int]] = {}
        self.streams: dict[int, Words] = {}
        self.last_drawn: dict[int, int] = {}
        self.parked: dict[int, list[list[int]]] = {}

    def execute(self, plan: Plan) -> Sampled:
        assert plan.num_tokens <= self.limits.step_tokens
        for move in plan.moves:
            self.move(move)
        for table in plan.tables:
            self.tables[table.slot] = self.tables.get(table.slot, [])[: table.first] + list(table.blocks)
        self.streams |= {entrant.slot: entrant.stream for entrant in plan.entrants}
        drawn = tuple(token for row in plan.rows for token in self.compute(plan.version or 0, row))
        return Sampled(tokens=drawn, logprobs=(0.0,) * len(drawn), cut_logprobs=(0.0,) * len(drawn))

    def move(self, move: CopyBlock | ParkBlocks | UnparkBlocks | DiscardBlocks) -> None:
        match move:
            case CopyBlock():
                self.cells[move.target] = list(self.cells[move.source])
            case ParkBlocks():
                self.parked[move.ticket] = [list(self.cells[block]) for block in move.blocks]
                num_parked = sum(map(len, self.parked.values()))
                assert num_parked <= self.limits.num_host_blocks
            case UnparkBlocks():
                for block, cell in zip(move.blocks, self.parked.pop(move.ticket), strict=True):
                    self.cells[block] = cell
            case DiscardBlocks():
                del self.parked[move.ticket]

    def compute(self, version: int, row: PlannedRow) -> list[int]:
        table, size = self.tables[row.slot], self.limits.block_size
        tokens = row.tokens or (self.last_drawn[row.slot],)
        for offset, token in enumerate((*tokens, *row.guesses)):
            block, cell = divmod(row.start + offset, size)
            self.cells[table[block]][cell] = token
        end = row.start + row.num_tokens
        context = [self.cells[table[index // size]][index % size] for index in range(end)]
        ends = range(end - row.num_draws + 1, end + 1)
        drawn = [draw(version, self.streams[row.slot], context[:each]) for each in ends]
        if drawn:
            # Which one, nobody may rely on where there are several.
            self.last_drawn[row.slot] = drawn[-1]
        return drawn


class Loop:
    """Plans up to `depth` steps ahead of the answers."""

    def __init__(self, limits: Limits, depth: int, guessed: int = 0) -> None:
        self.scheduler = Scheduler(limits, Stops([EOS]), guessed)
        self.executor = CellExecutor(limits)
        self.depth = depth
        self.under_way: deque[tuple[Plan, Sampled]] = deque()
        self.ended: list[Finished] = []
        self.num_plans = 0

    def step(self) -> bool:
        plan = self.scheduler.plan()
        if plan is not None:
            self.under_way.append((plan, self.executor.execute(plan)))
            self.num_plans += 1
        self.scheduler.check_integrity()
        if self.under_way and (plan is None or len(self.under_way) >= self.depth):
            self.ended += self.scheduler.commit(*self.under_way.popleft())
            self.scheduler.check_integrity()
            return True
        return plan is not None


def request(number: int, **changes: object) -> Request:
    fields: dict[str, object] = {
        "id": number,
        "version": 0,
        "prompt": (1, 2, 3),
        "key": StreamKey(seed=1, row=number),
        "stopping": Stopping(max_new_tokens=5),
    }
    return Request(**fields | changes)  # type: ignore[arg-type]


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Up to a dozen requests in groups and versions, no longer than 40 tokens each."""
    made = []
    for number in range(draw(st.integers(1, 12))):
        group, version = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        made.append(
            request(
                number,
                version=version,
                prompt=tuple(range(1, 2 + 5 * group)),
                continued=tuple(draw(st.lists(st.integers(1, 9), max_size=4))),
                group=draw(st.sampled_from([None, group])),
                lineage=draw(st.sampled_from([None, 1, 2])),
                deadline=draw(st.integers(0, 2)),
                stopping=Stopping(max_new_tokens=draw(st.integers(1, 20))),
                holds_turn=draw(st.booleans()),
            )
        )
    return made


LIMITS = st.builds(
    Limits,
    num_blocks=st.integers(20, 40),
    block_size=st.sampled_from([2, 3, 4]),
    num_host_blocks=st.sampled_from([0, 5, 100]),
    max_running=st.integers(1, 6),
    step_tokens=st.integers(6, 20),
    max_positions=st.just(100),
)


class World:
    """Checks every turn that ends, and lets held requests take a second one while they fit."""

    def __init__(self, loop: Loop, requests: list[Request]) -> None:
        self.loop = loop
        self.requests = {each.id: each for each in requests}
        self.contexts = {each.id: [*each.prompt, *each.continued] for each in requests}
        self.num_turns = dict.fromkeys(self.contexts, 0)

    def see(self, ended: Finished) -> None:
        own, context = self.requests[ended.id], self.contexts[ended.id]
        assert list(ended.tokens) == expected(own, context, len(context) + own.stopping.max_new_tokens)
        context += ended.tokens
        self.num_turns[ended.id] += 1
        if ended.is_held and self.num_turns[ended.id] == 1 and len(context) <= 18:
            self.loop.scheduler.resume(ended.id, (5, 6, 7))
            context += (5, 6, 7)
        elif ended.is_held:
            self.loop.scheduler.abort(ended.id)

    def run(self, gaps: list[int]) -> None:
        """Submit the requests so many steps after one another, and go on to the end."""
        for each, gap in zip(self.requests.values(), gaps, strict=False):
            self.loop.scheduler.submit(each)
            for _ in range(gap):
                self.advance()
        for _ in range(5000):
            if not self.advance():
                return
        raise AssertionError("starving")

    def advance(self) -> bool:
        is_active = self.loop.step()
        while self.loop.ended:
            self.see(self.loop.ended.pop())
        return is_active


@given(
    limits=LIMITS,
    requests=requests(),
    depth=st.integers(1, 3),
    guessed=st.sampled_from([0, 1, 5]),
    gaps=st.lists(st.integers(0, 5), min_size=12, max_size=12),
)
def test_every_request_ends_with_the_tokens_it_would_draw_alone(
    limits: Limits, requests: list[Request], depth: int, guessed: int, gaps: list[int]
) -> None:
    world = World(Loop(limits, depth, guessed), requests)
    world.run(gaps)
    assert all(world.num_turns.values())
    world.loop.executor.execute(world.loop.scheduler.settle())
    assert not world.loop.executor.parked


@given(
    limits=LIMITS,
    requests=requests(),
    depth=st.integers(1, 3),
    guessed=st.sampled_from([0, 5]),
    data=st.data(),
)
def test_aborting_leaves_the_others_alone(
    limits: Limits, requests: list[Request], depth: int, guessed: int, data: st.DataObject
) -> None:
    loop = Loop(limits, depth, guessed)
    for each in requests:
        loop.scheduler.submit(each)
    victims = data.draw(st.sets(st.sampled_from([each.id for each in requests])))
    for _ in range(data.draw(st.integers(0, 10))):
        loop.step()
    for victim in victims - {ended.id for ended in loop.ended}:
        partial = loop.scheduler.abort(victim)
        own = requests[victim]
        context = [*own.prompt, *own.continued]
        full = expected(own, context, len(context) + own.stopping.max_new_tokens)
        assert list(partial.tokens) == full[: len(partial.tokens)]
        loop.scheduler.check_integrity()
    while loop.step():
        pass
    ended = {ended.id for ended in loop.ended}
    assert ended >= {each.id for each in requests} - victims


def test_a_prompt_of_a_group_is_computed_once() -> None:
    limits = Limits(num_blocks=100, block_size=4, max_running=8, step_tokens=64)
    loop = Loop(limits, depth=1)
    prompt = tuple(range(1, 31))
    for number in range(4):
        loop.scheduler.submit(request(number, prompt=prompt, group=7))
    plans = []
    while plan := loop.scheduler.plan():
        plans.append(plan)
        loop.scheduler.commit(plan, loop.executor.execute(plan))
    assert [row.num_tokens for row in plans[0].rows] == [30]
    assert sorted(row.num_tokens for row in plans[1].rows) == [1, 1, 1, 1]


def branches(loop: Loop, *contexts: tuple[int, ...], lineage: int | None = 9) -> list[int]:
    """Let branches that begin so take a turn each, one giving way to the next; returns tokens prefilled."""
    computed, stopping = [], Stopping(max_new_tokens=3, is_length_prescribed=True)
    for number, context in enumerate(contexts):
        asked = request(number, prompt=context, lineage=lineage, holds_turn=True, stopping=stopping)
        loop.scheduler.submit(asked)
        prefilled = 0
        while plan := loop.scheduler.plan():
            prefilled += sum(row.num_tokens for row in plan.rows if not row.is_decoding)
            loop.ended += loop.scheduler.commit(plan, loop.executor.execute(plan))
            loop.scheduler.check_integrity()
        computed.append(prefilled)
        ended = loop.ended.pop()
        assert list(ended.tokens) == expected(asked, list(context), len(context) + 3)
        loop.scheduler.abort(number)
        loop.scheduler.check_integrity()
    return computed


@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_a_branch_computes_only_what_no_other_branch_of_its_episode_did(block_size: int) -> None:
    limits = Limits(num_blocks=100, block_size=block_size, max_running=4, step_tokens=64)
    context, loop = tuple(range(1, 31)), Loop(limits, depth=1)
    forked = (*context[:20], *range(40, 52))
    assert branches(loop, context, forked, (*context, 91, 92, 93), forked[:21]) == [30, 12, 3, 0]
    assert loop.scheduler.residency.num_reused == 20 + 30 + 20
    assert loop.scheduler.load(()).kv_tokens == 0, "what nobody but a remnant uses is as good as free"
    alone = Loop(limits, depth=1)
    assert branches(alone, context, forked, lineage=None) == [30, 32]
    assert alone.scheduler.residency.num_reused == 0


def test_remnants_make_room_before_anybody_loses_a_place() -> None:
    limits = Limits(num_blocks=12, block_size=4, max_running=2, step_tokens=64)
    loop = Loop(limits, depth=1)
    assert branches(loop, tuple(range(1, 31))) == [30]
    loop.scheduler.submit(request(50, prompt=(7,) * 40, stopping=Stopping(max_new_tokens=6)))
    while loop.step():
        pass
    assert loop.scheduler.load(()).num_preempted == 0
    assert branches(loop, tuple(range(1, 31))) == [30], "it had to go"


def test_remnants_go_with_their_version() -> None:
    loop = Loop(Limits(num_blocks=40, block_size=4, max_running=2, step_tokens=64), depth=1)
    context = tuple(range(1, 31))
    branches(loop, context)
    loop.scheduler.residency.drop_version(0)
    loop.scheduler.check_integrity()
    assert loop.scheduler.residency.num_free == 40
    assert branches(loop, context) == [30]


def test_the_most_urgent_goes_first_and_the_least_urgent_makes_room() -> None:
    loop = Loop(Limits(num_blocks=6, block_size=4, max_running=2, step_tokens=16, max_positions=64), depth=1)
    stopping = Stopping(max_new_tokens=12, is_length_prescribed=True)
    for number, deadline in enumerate((3, 1, 2)):
        loop.scheduler.submit(request(number, deadline=deadline, stopping=stopping))
    while loop.step():
        pass
    assert [ended.id for ended in loop.ended] == [1, 2, 0]
    assert loop.scheduler.load(()).num_preempted > 0


def test_what_does_not_fit_is_refused_in_words() -> None:
    scheduler = Scheduler(Limits(num_blocks=4, block_size=4, max_running=2, max_positions=64), Stops([EOS]))
    with pytest.raises(RequestError, match="need 5 KV blocks"):
        scheduler.submit(request(1, prompt=(1,) * 4, stopping=Stopping(max_new_tokens=14)))
    with pytest.raises(RequestError, match="leave none to generate"):
        scheduler.submit(request(1, prompt=(1,) * 64))
    with pytest.raises(RequestError, match="empty"):
        scheduler.submit(request(1, prompt=()))
    scheduler.submit(request(1))
    with pytest.raises(RequestError, match="here already"):
        scheduler.submit(request(1))
    with pytest.raises(RequestError, match="not here"):
        scheduler.abort(2)
    with pytest.raises(RequestError, match="not between turns"):
        scheduler.resume(1, (4,))


def test_steps_too_small_for_the_batch_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="cannot all decode"):
        Limits(num_blocks=4, max_running=9, step_tokens=8)


def test_in_a_round_the_most_urgent_version_goes_first() -> None:
    turns, urgent = VersionTurns(), {0: (3, 1), 1: (1, 2), 2: (2, 3)}
    assert [turns.next_turn(urgent) for _ in range(6)] == [1, 2, 0, 1, 2, 0]


def test_nobody_enters_who_would_leave_a_running_request_no_block_to_grow_into() -> None:
    loop = Loop(Limits(num_blocks=4, block_size=4, max_running=2, step_tokens=16, max_positions=64), depth=1)
    for number in (1, 2):
        loop.scheduler.submit(request(number, prompt=(1,) * 7, stopping=Stopping(max_new_tokens=3)))
        loop.step()
    assert loop.scheduler.load(()).num_running == 1
    while loop.step():
        pass
    assert loop.scheduler.load(()).num_preempted == 0


def test_a_stop_string_is_found_behind_tokens_that_say_nothing() -> None:
    """As special tokens, or pieces of a character: text comes from far fewer of them than it has letters."""
    loop = Loop(
        Limits(num_blocks=40, block_size=4, max_running=2, step_tokens=16, max_positions=128), depth=1
    )
    stops = Stops([], decode=lambda tokens: "".join({8: "a", 9: "b"}.get(token, "") for token in tokens))
    asked = Stopping(max_new_tokens=90, stop_tokens=(), stop_strings=("ab",))
    loop.scheduler.submit(request(1, stopping=asked))
    sequence = loop.scheduler.find(1)
    stops.equip(sequence)
    for token in (8, *[1] * 60):
        sequence.tokens.append(token)
        assert stops.reason(sequence) is None
    sequence.tokens.append(9)
    assert stops.reason(sequence) == "stop string"


@given(st.lists(st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 3), st.integers())), min_size=1))
def test_no_version_waits_longer_than_a_round(steps: list[dict[int, tuple[int, int]]]) -> None:
    turns, waited = VersionTurns(), dict.fromkeys(range(5), 0)
    for with_work in filter(None, steps):
        turn = turns.next_turn(with_work)
        assert turn in with_work
        for version in waited:
            waited[version] = waited[version] + 1 if version in with_work and version != turn else 0
        assert max(waited.values()) <= 2 * 4


@pytest.mark.parametrize("depth", [1, 2])
def test_guesses_that_come_true_save_steps(depth: int) -> None:
    limits = Limits(num_blocks=100, block_size=4, max_running=4, step_tokens=32, max_positions=128)
    loop, stopping = Loop(limits, depth, guessed=7), Stopping(max_new_tokens=100, is_length_prescribed=True)
    num_plans = []
    for number in (1, 2):
        loop.scheduler.submit(request(number, key=StreamKey(seed=1), stopping=stopping))
        while loop.step():
            pass
        num_plans.append(loop.num_plans)
    first, second = loop.ended
    assert first.tokens == second.tokens
    assert num_plans[1] - num_plans[0] < 0.3 * num_plans[0]
