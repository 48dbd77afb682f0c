"""The native engine: an Engine over one scheduler, one executor and the versions that are resident.

`step` is the whole loop: plan, launch, take in the oldest answer. With `steps_ahead`, plans are made and
launched before earlier answers are known. A request that cannot be served becomes a Failed event and touches
no other.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from dora_rl.core.errors import DoraError
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.decode_clock import DecodeClock
from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.backend import Backend, Model, Served
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.engine_memory import check_support, checked_ledger
from dora_rl.engines.native.intake import Intake
from dora_rl.engines.native.scheduling.scheduler import Scheduler
from dora_rl.engines.native.scheduling.step_plan import Launched, Plan
from dora_rl.engines.native.scheduling.step_times import StepTimes
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.served_versions import NativeLoad, ServedVersions, Weights
from dora_rl.engines.native.transfer import Exported, header_of, read_exported, sequence_of, write_exported
from dora_rl.engines.protocol import Abilities, EngineLoad, MovedOut, VersionLoad, VersionReader
from dora_rl.engines.requests import DrawnTokens, Event, Failed, Request
from dora_rl.model.delta import Delta


class NativeEngine:
    """Runs the decoder itself, in this process. Implements Engine and ParksTurns."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        stops: Stops,
        *,
        backend: Backend = CPU,
        source: VersionReader | None = None,
        device: str = "cpu",
    ) -> None:
        check_support(model, config)
        backend.check_model(model, config)
        self._config = config
        self.ledger = checked_ledger(
            model,
            config,
            workspace_bytes=backend.workspace_bytes(model, config),
            version_bytes=backend.version_bytes(model, config),
        )
        self._device = backend.make_device(model, config)
        self._is_paged = backend.is_paged
        self._scheduler = Scheduler(config.limits, stops, config.guessed_tokens)
        self._versions = ServedVersions(
            model, config, self.ledger, device=self._device, backend=backend, scheduler=self._scheduler
        )
        self._intake = Intake(model, config, self._versions, stops)
        self._under_way: deque[tuple[Plan, Launched]] = deque()
        self._events: list[Event] = []
        self._clock = DecodeClock()
        self._times = StepTimes(config.limits.block_size, shares_passes=self._device.joins_versions)
        self._source, self._source_device = source, device
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="versions")

    @property
    def abilities(self) -> Abilities:
        """What control may ask of this engine."""
        return Abilities(
            max_versions=self._config.max_versions,
            # What arrives waits in host memory until it has a place on the device.
            moves_kv=self._is_paged and self._config.limits.num_host_blocks > 0,
            continues=True,
            holds_turns=self._is_paged,
            parks_turns=self._is_paged and self._config.limits.num_host_blocks > 0,
            keys_draws=True,
            is_batch_invariant=self._config.is_batch_invariant,
        )

    # --- the loop -------------------------------------------------------------------------------

    def step(self) -> bool:
        """Plan and launch a step, take in the oldest answers; False when there was nothing to do.

        A device that joins versions is given one step of each, in runs that need not await each other.
        """
        began = time.monotonic()
        if self._device.joins_versions:
            runs: list[list[Plan]] = []
            while planned := self._scheduler.plan():
                if not runs or planned.awaits_rows:
                    runs.append([])
                runs[-1].append(planned)
                if self._scheduler.is_round_over:
                    break
            for plans in runs:
                self._under_way.extend(zip(plans, self._device.launch_together(plans), strict=True))
            taken = [self._take_in() for _ in range(len(self._under_way))]
            self._times.count(taken, time.monotonic() - began)
            return bool(runs)

        plan = self._scheduler.plan()
        if plan is not None:
            self._under_way.append((plan, self._device.launch(plan)))
        most_ahead = self._config.steps_ahead * max(1, self._scheduler.num_versions)
        if self._under_way and (plan is None or len(self._under_way) > most_ahead):
            self._times.count([self._take_in()], time.monotonic() - began)
            return True
        return plan is not None

    def run(self) -> list[Event]:
        """Step until nothing can advance; return what ended."""
        while self.step():
            pass
        return self.finished()

    def _take_in(self) -> Plan:
        plan, launched = self._under_way.popleft()
        _, before = self.guesses
        self._events += self._scheduler.commit(plan, launched.result())
        if any(row.is_sampled for row in plan.rows):
            gained = (self.guesses[1] - before) / len(plan.rows)
            self._clock.count(plan.version, time.monotonic(), 1.0 + gained)
        return plan

    def _settle(self) -> None:
        """Take in all answers and carry out all moves, so that memory is as the scheduler thinks."""
        while self._under_way:
            self._take_in()
        self._device.launch(self._scheduler.settle()).result()

    # --- generate -------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request; what is wrong with it becomes a Failed event."""
        try:
            self._intake.check(request)
            if not self._is_paged:
                if request.holds_turn:
                    raise RequestError("this model's state is not kept between turns")
                # Nobody shares what lies in no blocks.
                request = replace(request, group=None, lineage=None)
            self._scheduler.submit(request)
        except RequestError as error:
            self._fail(request.id, error)

    def resume(
        self,
        request_id: int,
        tokens: tuple[int, ...],
        max_new_tokens: int | None = None,
        stop_strings: tuple[str, ...] | None = None,
    ) -> None:
        """Append the environment's tokens to a held request and let it take its next turn."""
        try:
            self._intake.check_tokens(tokens)
            self._intake.check_stops(stop_strings or ())
            self._scheduler.resume(request_id, tokens, max_new_tokens, stop_strings)
        except DoraError as error:
            self._fail(request_id, error)

    def park(self, request_id: int) -> None:
        """Take the KV of a held request to host memory; it comes back when the request is resumed."""
        self._scheduler.park(request_id)

    def abort(self, request_id: int) -> None:
        """End a request; what it generated so far comes as a Finished event."""
        try:
            self._events.append(self._scheduler.abort(request_id))
        except RequestError as error:
            self._fail(request_id, error)

    def finished(self) -> list[Event]:
        """Events of turns that ended since the last call."""
        events, self._events = self._events, []
        return events

    def request(self, request_id: int) -> Request:
        """A live request as it would be submitted to begin the turn it is in; between turns, the next."""
        return self._scheduler.find(request_id).request

    def is_held(self, request_id: int) -> bool:
        """Whether a request is here, between turns."""
        return self._scheduler.is_held(request_id)

    def drawn(self, request_id: int, first: int = 0) -> DrawnTokens | None:
        """What a live request drew in this turn from its `first` token on; None if it is not here."""
        try:
            sequence = self._scheduler.find(request_id)
        except RequestError:
            return None
        return DrawnTokens(
            request=request_id,
            version=sequence.request.version,
            tokens=tuple(sequence.tokens[sequence.turn_start + first :]),
            logprobs=tuple(sequence.logprobs[first:]),
            cut_logprobs=tuple(sequence.cut_logprobs[first:]),
            experts=tuple(sequence.experts[first:]),
        )

    def rest(self) -> None:
        """Note that nothing will be generated for a while: that time is no part of a round.

        Meanwhile the device compiles what later steps will need, a pass with each call.
        """
        self._clock.rest()
        self._device.rehearse()

    def load(self) -> EngineLoad:
        """The requests, KV and versions that the engine carries now, and how fast it decodes."""
        clock = self._clock
        load = self._scheduler.load(tuple(self._versions), clock=clock.rounds, round_s=clock.round_s)
        return replace(load, **self._times.figures)

    @property
    def guesses(self) -> tuple[int, int]:
        """How many tokens were guessed so far, and how many of them came true."""
        return self._scheduler.guesses

    def check_integrity(self) -> None:
        """Assert what must hold of requests, blocks and slots at every moment."""
        self._scheduler.check_integrity()

    def decoder(self, version: int) -> Served:
        """The decoder of a resident version, to be read and not written."""
        return self._versions[version]

    # --- versions -------------------------------------------------------------------------------

    def begin_version(self, version: int, drop: Sequence[int] = ()) -> NativeLoad:
        """Begin to read a version that becomes resident in place of those to drop; one at a time.

        It is read and decoded as a change of the nearest one, beside the engine, which goes on meanwhile and
        stands still only while its weights are written.
        """
        assert self._source is not None, "this engine was opened without a store of versions"
        base, delta = max((old for old in self._versions if old < version), default=None), None
        if version in self._versions:
            base = None
        if base is not None:
            tensors = {name: each.detach() for name, each in self._versions[base].named_parameters()}
            delta = self._reader.submit(self._source.fetch_delta, version, base, tensors)
        return NativeLoad(version=version, drop=tuple(drop), base=base, delta=delta)

    def finish_version(self, load: VersionLoad) -> None:
        """Wait until the version is read and make it resident."""
        assert isinstance(load, NativeLoad), f"{load} was not begun by this engine"
        assert self._source is not None, "this engine was opened without a store of versions"
        version, base, drop = load.version, load.base, load.drop
        if version not in self._versions:
            # Before anything is dropped: what cannot be read leaves everything as it was.
            delta = load.delta.result() if load.delta is not None else None
            self._drop_resident([old for old in drop if old != base])
            if base is not None and delta is not None:
                self._settle()
                self._versions.adopt(version, base, delta, keeps_base=base not in drop)
            else:
                self._drop_resident(drop)
                self.load_version(version, self._source.fetch(version, self._source_device))
        self._drop_resident(drop)

    def _drop_resident(self, versions: Sequence[int]) -> None:
        for version in versions:
            if version in self._versions:
                self.drop_version(version)

    def load_version(self, version: int, weights: Weights) -> None:
        """Make a version resident from a full set of weights."""
        self._versions.load(version, weights)

    def adopt_version(self, version: int, base: int, delta: Delta, *, keeps_base: bool = False) -> None:
        """Make a version resident as a change to another, in place if nothing uses that one any more.

        With `keeps_base` the other stays resident in any case.
        """
        self._settle()
        self._versions.adopt(version, base, delta, keeps_base=keeps_base)

    def drop_version(self, version: int) -> None:
        """Free a version; refused while a request uses it."""
        self._settle()
        self._versions.drop(version)

    # --- transfer -------------------------------------------------------------------------------

    def export_request(self, request_id: int) -> Exported:
        """Take a request out of this engine, with its KV in memory."""
        if not self._is_paged:
            raise RequestError("this model's state does not leave the engine")
        self._settle()
        sequence = self._scheduler.find(request_id)
        kv = None
        if sequence.ticket is not None:
            kv = self._device.parked_kv(sequence.ticket)[:, :, : sequence.num_computed]
        elif sequence.num_computed:
            kv = self._device.read_kv(sequence.blocks, sequence.num_computed)
        exported = Exported(header=header_of(sequence), kv=kv)
        self._scheduler.remove(sequence)
        return exported

    def import_request(self, exported: Exported) -> None:
        """Let a request go on here as it would have gone on there; raise and change nothing if it cannot."""
        header, scheduler = exported.header, self._scheduler
        self._intake.check_exported(exported)
        # What is held may be as long as a sequence can be: whether it may grow is asked when it is resumed.
        scheduler.check(header.request, len(header.tokens) - header.is_held, header.max_tokens)
        ticket = None
        if exported.kv is not None and header.num_computed:
            # As that of a preempted request, which enters when there is room.
            num_blocks = self._config.limits.blocks_for(header.num_computed)
            scheduler.residency.host.check_room(num_blocks)
            ticket = scheduler.residency.host.new_ticket(num_blocks)
            self._device.park_kv(ticket, exported.kv)
        priority = scheduler.new_priority(header.request)
        serial = scheduler.new_serial()
        scheduler.add(sequence_of(header, priority=priority, serial=serial, ticket=ticket))

    def export_file(self, request_id: int, path: Path) -> MovedOut:
        """Take a request out of this engine and write it to a file."""
        exported = self.export_request(request_id)
        return MovedOut(drawn=exported.header.drawn, kv_bytes=write_exported(exported, path))

    def import_file(self, request_id: int, path: Path) -> DrawnTokens:
        """Let a request from a file go on under a new number; returns the tokens of its turn so far."""
        exported = read_exported(path, request_id)
        self.import_request(exported)
        return exported.header.drawn

    def _fail(self, request_id: int, error: DoraError) -> None:
        self._events.append(Failed(id=request_id, message=error.message, hint=error.hint))
