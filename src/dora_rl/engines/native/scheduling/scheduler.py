"""Which requests compute what in the next step.

What a request needs at most fits the cache alone, or it is refused; who goes first is the Batch's to say. A
plan is made from counts, not from tokens, so the next one can be made before the last one's draws are known.
Answers come back in the order of plans; those to a turn that is over are dropped.
"""

from collections.abc import Iterator
from itertools import islice, takewhile

from dora_rl.engines.config import Limits
from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.scheduling.residency import Residency
from dora_rl.engines.native.scheduling.scheduled_sequences import ScheduledSequences
from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.native.scheduling.speculation import Speculation
from dora_rl.engines.native.scheduling.step_plan import Plan, Sampled
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.scheduling.turns import Priority, VersionTurns
from dora_rl.engines.protocol import EngineLoad
from dora_rl.engines.requests import Finished, Reason, Request, Stopping


class Scheduler:
    """Takes requests from submission to their end: plans steps and takes in their answers."""

    def __init__(self, limits: Limits, stops: Stops, guessed_tokens: int = 0) -> None:
        self.limits = limits
        self.residency = Residency(limits)
        self.speculation = Speculation(guessed_tokens) if guessed_tokens else None
        self._batch = ScheduledSequences(limits, self.residency, self.speculation)
        self._stops = stops
        self._turns = VersionTurns()
        self._sequences: dict[int, Sequence] = {}
        """The sequence of every live request, by request."""
        self._by_serial: dict[int, Sequence] = {}
        self._num_submitted = 0
        self._next_serial = 0

    # --- commands -------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request, or refuse it."""
        tokens = [*request.prompt, *request.continued]
        max_tokens = self._max_tokens(request.stopping, len(tokens))
        self.check(request, len(tokens), max_tokens)
        sequence = Sequence(
            request=request,
            priority=self.new_priority(request),
            serial=self.new_serial(),
            tokens=tokens,
            max_tokens=max_tokens,
            turn_start=len(tokens),
            num_lost=len(tokens) if request.continued else 0,
        )
        self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence that may have tokens and parked KV already."""
        self._stops.equip(sequence)
        self._sequences[sequence.request.id] = sequence
        self._by_serial[sequence.serial] = sequence
        if self.speculation is not None:
            self.speculation.begin(sequence)
        if sequence.is_held:
            self._batch.hold(sequence)
        else:
            self._batch.wait(sequence)

    def resume(
        self,
        request_id: int,
        tokens: tuple[int, ...],
        max_new_tokens: int | None = None,
        stop_strings: tuple[str, ...] | None = None,
    ) -> None:
        """Begin the next turn of a held request behind the environment's tokens."""
        sequence = self.find(request_id)
        if not sequence.is_held:
            raise RequestError(f"request {request_id} is not between turns")
        num_tokens = len(sequence.tokens) + len(tokens)
        stopping = sequence.request.stopping.of_turn(max_new_tokens, stop_strings)
        max_tokens = self._max_tokens(stopping, num_tokens)
        self.limits.check_length(num_tokens, max_tokens)
        self._batch.leave(sequence)
        sequence.resume(tokens, stopping, max_tokens)
        self._stops.equip(sequence)
        self._batch.wait(sequence)

    def park(self, request_id: int) -> None:
        """Take the KV of a request that is between turns off the device, to come back when it is resumed."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.is_held and sequence.blocks:
            self.residency.offload(sequence)

    def abort(self, request_id: int) -> Finished:
        """End a request now, with the tokens it has."""
        sequence = self.find(request_id)
        return self._end_turn(sequence, "aborted", is_held=False)

    def find(self, request_id: int) -> Sequence:
        """The sequence of a request."""
        if request_id not in self._sequences:
            raise RequestError(f"request {request_id} is not here")
        return self._sequences[request_id]

    def is_held(self, request_id: int) -> bool:
        """Whether a request is here, between turns."""
        return request_id in self._sequences and self._sequences[request_id].is_held

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free what it has."""
        self._batch.leave(sequence)
        self.residency.release(sequence)
        if self.speculation is not None:
            self.speculation.end(sequence)
        del self._sequences[sequence.request.id], self._by_serial[sequence.serial]

    def new_serial(self) -> int:
        """A serial number that no turn had before."""
        self._next_serial += 1
        return self._next_serial

    def new_priority(self, request: Request) -> Priority:
        """A priority behind everything submitted so far with the same deadline."""
        self._num_submitted += 1
        return request.deadline, self._num_submitted

    # --- what there is --------------------------------------------------------------------------

    @property
    def guesses(self) -> tuple[int, int]:
        """How many tokens were guessed so far, and how many of them came true."""
        made = self.speculation
        return (0, 0) if made is None else (made.num_guessed, made.num_right)

    @property
    def num_versions(self) -> int:
        """How many versions take turns."""
        return self._batch.num_versions

    def uses_version(self, version: int) -> bool:
        """Whether a live request is pinned to a version."""
        return any(sequence.request.version == version for sequence in self._sequences.values())

    def load(
        self, versions: tuple[int, ...], *, clock: float = 0.0, round_s: float | None = None
    ) -> EngineLoad:
        """The requests, KV and versions that the engine carries now."""
        num_used = self.limits.num_blocks - self.residency.num_free - self.residency.num_spare
        return EngineLoad(
            num_running=len(self._batch.running),
            num_waiting=len(self._batch.waiting),
            num_held=len(self._batch.held),
            kv_tokens=num_used * self.limits.block_size,
            kv_capacity=self.limits.num_blocks * self.limits.block_size,
            num_preempted=self._batch.num_preempted,
            versions=versions,
            clock=clock,
            round_s=round_s,
            num_reused=self.residency.num_reused,
        )

    def check_integrity(self) -> None:
        """Assert that every sequence is in one queue and every block, slot and ticket accounted for."""
        queued = [*self._batch.waiting, *self._batch.running, *self._batch.held]
        assert sorted(map(id, queued)) == sorted(map(id, self._sequences.values())), "a sequence went astray"
        assert sorted(map(id, queued)) == sorted(map(id, self._by_serial.values())), "a serial went astray"
        self._batch.check_integrity()
        self.residency.check_integrity(queued)

    # --- a step ---------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next step; None when nothing can advance before an answer or a command comes in."""
        self._batch.admit()
        while most_urgent := self._batch.most_urgent():
            version = self._turns.next_turn(most_urgent)
            if rows := self._batch.rows(version):
                plan = self.residency.seal(version, tuple(rows))
                # A decoding row is beyond its prompt.
                for row in plan.prefilling:
                    self.residency.keep_prefix(self._by_serial[row.serial])
                return plan
        return None

    @property
    def is_round_over(self) -> bool:
        """Whether every version with work had its step in this round."""
        return self._turns.is_over(self._batch.most_urgent())

    def settle(self) -> Plan:
        """A plan without rows that carries out all pending moves."""
        return self.residency.seal(None, ())

    def commit(self, plan: Plan, sampled: Sampled) -> list[Finished]:
        """Take in what a step drew; returns the turns that ended."""
        if self.speculation is not None and plan.has_guesses:
            drawn = self._verified(plan, sampled)
        else:
            serials = [row.serial for row in plan.rows if row.is_sampled]
            drawn = zip(serials, *sampled.columns, strict=True)
        ended, find = [], self._by_serial.get
        for serial, token, logprob, cut_logprob, experts in drawn:
            sequence = find(serial)
            if sequence is None:
                continue
            tokens = sequence.tokens
            tokens.append(token)
            sequence.logprobs.append(logprob)
            if sequence.is_cut:
                sequence.cut_logprobs.append(cut_logprob)
            if experts:
                sequence.experts.append(experts)
            # Asked in short first: hardly a token ends a turn.
            may_end = len(tokens) >= sequence.max_tokens or token in sequence.stop_tokens
            if (may_end or sequence.stop_strings) and (reason := self._stops.reason(sequence)):
                ended.append(self._end_turn(sequence, reason, is_held=sequence.request.holds_turn))
        return ended

    def _verified(self, plan: Plan, sampled: Sampled) -> Iterator[tuple[int, int, float, float, bytes]]:
        """The draws of a plan with guesses that count: up to the first that was guessed wrong."""
        assert self.speculation is not None, "nobody guesses here"
        assert plan.version is not None, "what has rows has a version"
        self._batch.verifying.discard(plan.version)
        draws = zip(*sampled.columns, strict=True)
        for row in plan.rows:
            own = list(islice(draws, row.num_draws))
            pairs = zip(row.guesses, own, strict=False)
            num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], pairs))
            sequence = self._by_serial.get(row.serial)
            if sequence is not None and row.guesses:
                sequence.accept(num_right)
                self.speculation.learn(sequence, len(row.guesses), num_right)
            for draw in own[: num_right + 1]:
                yield row.serial, *draw

    def _end_turn(self, sequence: Sequence, reason: Reason, *, is_held: bool) -> Finished:
        """End a turn as it is now; the sequence is held until the next one, or forgotten."""
        ended = Finished(
            id=sequence.request.id,
            version=sequence.request.version,
            tokens=tuple(sequence.tokens[sequence.turn_start :]),
            logprobs=tuple(sequence.logprobs),
            cut_logprobs=tuple(sequence.cut_logprobs),
            experts=tuple(sequence.experts),
            reason=reason,
            is_held=is_held,
        )
        if not is_held:
            self.remove(sequence)
            return ended
        self._batch.hold(sequence)
        # Draws planned beyond the end of the turn answer to the old serial, and are dropped.
        del self._by_serial[sequence.serial]
        sequence.hold(self.new_serial())
        self._by_serial[sequence.serial] = sequence
        return ended

    # --- what may come in -----------------------------------------------------------------------

    def _max_tokens(self, stopping: Stopping, num_tokens: int) -> int:
        return min(num_tokens + stopping.max_new_tokens, self.limits.max_positions)

    def check(self, request: Request, num_tokens: int, max_tokens: int) -> None:
        """Refuse a request that could never be carried out."""
        if request.id in self._sequences:
            raise RequestError(f"request {request.id} is here already")
        if not request.prompt:
            raise RequestError("the prompt is empty")
        self.limits.check_length(num_tokens, max_tokens)
