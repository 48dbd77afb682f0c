"""An executor with its own truth: which request is where, which weights are resident, what was trained.

It carries decisions out at once, but control hears of it late and out of order: messages wait in one
outbox for each source, first in first out, and whoever drives the history chooses which source speaks
next and which piece of work ends next. A decision that makes no sense is an assertion here.
"""

from collections import Counter, deque
from collections.abc import Callable
from random import Random

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.core.instance_spec import InstanceSpec

ENV_TOKENS = 3
"""Tokens every environment appends."""

Message = Callable[[float], Input | None]
"""Makes the input at the moment it is delivered; None if it became pointless on the way."""
Work = Callable[[], None]


class Episode:
    """One attempt at a trajectory, as fate has it."""

    def __init__(self, attempt: int, ends: list[int]) -> None:
        self.attempt = attempt
        self.ends = ends
        """Tokens after the prompt at which each turn ends, environment tokens included."""
        self.tokens = 0
        """Tokens that outlive an instance."""
        self.asked_turn: int | None = None
        """The turn its environment is at work on."""


class Request:
    """A request on a machine, or between two."""

    __slots__ = (
        "ends",
        "is_resting",
        "is_waiting",
        "prompt_tokens",
        "tokens",
        "trajectory",
        "turn",
        "version",
    )

    def __init__(self, start: do.Start, episode: Episode) -> None:
        self.trajectory = start.trajectory
        self.version = start.version
        self.prompt_tokens = start.prompt_tokens
        self.ends = episode.ends
        tokens = min(start.generated_tokens, episode.tokens)
        self.turn = sum(end + ENV_TOKENS <= tokens for end in episode.ends[:-1])
        self.tokens = min(tokens, self.until - 1)
        self.is_waiting = False
        self.is_resting = False
        """Whether its environment has the turn and its KV is in host memory."""

    @property
    def until(self) -> int:
        return self.ends[self.turn]

    def go_on(self) -> None:
        """Its environment replied: the next turn is generated."""
        self.turn += 1

    @property
    def kv(self) -> int:
        return self.prompt_tokens + self.tokens


class Machine:
    """One instance, from its join to its death; the next life is another object."""

    def __init__(self, key: int, spec: InstanceSpec, version: int) -> None:
        self.key = key
        self.spec = spec
        self.versions = {version}
        self.loads: deque[tuple[int, bool]] = deque()
        """(version, whether it interrupts) in the order they were ordered."""
        self.requests: dict[int, Request] = {}
        self.parked: set[int] = set()
        self.clock = 0
        self.is_known = False
        """Control has heard that it joined, and not yet that it died."""
        self.is_alive = True
        self.is_hung = False
        self.is_lent = False
        self.is_returning = False

    @property
    def kv(self) -> int:
        return sum(request.kv for request in self.requests.values() if not request.is_resting)

    @property
    def kv_capacity(self) -> int:
        return self.spec.kv_capacity(len(self.versions))

    @property
    def is_interrupted(self) -> bool:
        """Its weights are about to be replaced as a whole."""
        return any(interrupts for _, interrupts in self.loads)

    @property
    def decodes(self) -> bool:
        return bool(self.requests) and not (self.is_hung or self.is_lent or self.is_interrupted)

    def advance(self, steps: int) -> list[Request]:
        """Decode; return the requests whose turn ended. Those that do not fit into the KV stand still."""
        room, running = self.kv_capacity, []
        for request in self.requests.values():
            room -= 0 if request.is_resting else request.kv
            runs = not request.is_waiting and request.version in self.versions
            if runs and request.trajectory not in self.parked and (room >= 0 or not running):
                running.append(request)
        if not running:
            self.parked.clear()
            return []
        steps = min(steps, min(r.until - r.tokens for r in running))
        self.clock += steps
        for request in running:
            request.tokens += steps
        return [request for request in running if request.tokens == request.until]


class Executor:
    """Machines, environments and a trainer that do what control says."""

    def __init__(self, rng: Random, *, group_size: int, max_tokens: int, mean_turns: float) -> None:
        self._rng = rng
        self._group_size = group_size
        self._max_tokens = max_tokens
        self._mean_turns = mean_turns
        self.move_failure_rate = 0.0
        self.environment_failure_rate = 0.0
        self.zero_variance_rate = 0.0
        self.checks_slots = True
        self.mixes_versions = False
        """The schedule `partial` breaks law 1 on purpose."""
        self.machines: dict[int, Machine] = {}
        self.outboxes: dict[object, deque[Message]] = {}
        self.work: list[Work] = []
        self.num_rested = 0
        """How often KV of a request between turns was parked."""
        self.newest = 0
        self.training: do.Take | None = None
        self._taken: do.Take | None = None
        """The batch that was taken on the last input."""
        self._believed: tuple[int, ...] = ()
        """Groups that control believes to be in training."""
        self._is_durable = False
        self._is_trainer_down = False
        self.is_finished = False
        self.version_of: dict[int, int] = {}
        self.evaluations: dict[int, int] = {}
        self.scored: set[int] = set()
        self.closed: set[int] = set()
        self.committed: set[int] = set()
        self._handed: dict[int, set[int]] = {}
        self._retired: set[int] = set()
        self._episodes: dict[int, Episode] = {}
        self._transit: dict[int, tuple[do.Move, Request]] = {}
        self._last_move: dict[int, do.Move] = {}
        self._failing: set[int] = set()
        """Trajectories that were lost on their way, until control starts them again."""
        self._aborts: Counter[int] = Counter()
        self._act: dict[type[Decision], Callable[..., None]] = {
            do.Start: self._start,
            do.Resume: self._resume,
            do.Move: self._move,
            do.Park: self._park,
            do.Evict: self._evict,
            do.Abort: self._abort,
            do.Interrupt: self._interrupt,
            do.Load: self._load,
            do.Drop: self._drop,
            do.Lend: self._lend,
            do.Return: self._give_back,
            do.Restart: self._restart,
            do.Admit: self._admit,
            do.Hand: self._hand,
            do.Take: self._take,
            do.Close: self._close,
            do.Retire: self._retire,
            do.Wait: lambda d: None,
            do.Skip: lambda d: None,
            do.Finish: self._finish,
        }

    def begin(self) -> None:
        """Control is told something: what follows is decided about that."""
        self._taken = None

    def carry_out(self, decision: Decision) -> None:
        self._act[type(decision)](decision)

    def say(self, source: object, message: Message) -> None:
        self.outboxes.setdefault(source, deque()).append(message)

    # --- what the driver does ---

    def join(self, key: int, spec: InstanceSpec, version: int) -> None:
        machine = self.machines[key] = Machine(key, spec, version)

        def joined(at: float) -> Input | None:
            machine.is_known = machine.is_alive
            return told.InstanceJoined(at=at, instance=key, spec=spec, version=version)

        self.say(key, joined)

    def die(self, key: int, *, loses_messages: bool, silently: bool = False) -> None:
        """An instance dies; `silently`: control only hears of the next life."""
        machine = self.machines.pop(key)
        machine.is_alive = False
        for request in machine.requests.values():
            self._journal(request)
        for move, request in list(self._transit.values()):
            if key in (move.source, move.target):
                self._journal(request)
                self._failing.add(move.trajectory)
                del self._transit[move.trajectory]
        if loses_messages and machine.is_known:
            self.outboxes.pop(key, None)

        def lost(at: float) -> Input | None:
            machine.is_known = False
            return told.InstanceLost(at=at, instance=key, reason="died")

        if not silently:
            self.say(key, lost)

    def report(self, machine: Machine) -> None:
        """A sign of life, unless an earlier word of it is still on its way."""
        if not machine.is_hung and not self.outboxes.get(machine.key):
            clock, kv = machine.clock, machine.kv
            self.say(machine.key, lambda at: told.LoadReport(
                at=at, instance=machine.key, clock=clock, kv_tokens=kv, step_s=0.01))  # fmt: skip

    def advance(self, machine: Machine, steps: int) -> None:
        for request in machine.advance(steps):
            self._turn_over(machine, request)
        if machine.kv > 0.97 * machine.kv_capacity:
            clock, kv = machine.clock, machine.kv
            self.say(machine.key, lambda at: told.KvPressure(
                at=at, instance=machine.key, clock=clock, kv_tokens=kv))  # fmt: skip

    def fail_environment(self, trajectory: int) -> None:
        """An environment breaks at a moment of its own choosing."""
        episode = self._episodes[trajectory]

        def failed(at: float) -> Input | None:
            current = self._episodes.get(trajectory) is episode
            return told.EnvironmentFailed(at=at, trajectory=trajectory, reason="broke") if current else None

        self.say("environments", failed)

    def lose_step(self) -> None:
        """The trainer crashes: with the step in flight, or idle with what it was handed."""
        if self._is_durable or self._is_trainer_down:
            return
        self.training, self._is_trainer_down = None, True
        self._handed.clear()

        def lost(at: float) -> Input:
            self._is_trainer_down, self._believed = False, ()
            return told.StepLost(at=at, reason="crashed")

        self.say("trainer", lost)

    def live_trajectories(self) -> list[int]:
        return [key for key in self._episodes if key not in self.closed and key not in self.scored]

    # --- generating ---

    def _turn_over(self, machine: Machine, request: Request) -> None:
        key, tokens, clock = request.trajectory, request.tokens, machine.clock
        episode, aborts = self._episodes[key], self._aborts[key]
        if request.turn + 1 == len(request.ends):
            del machine.requests[key]
            kv = machine.kv

            def ended(at: float) -> Input | None:
                if self._aborts[key] > aborts:
                    return None
                self._soon(lambda: self._score(key, episode))
                return told.Ended(at=at, instance=machine.key, trajectory=key, tokens=tokens, clock=clock,
                                  kv_tokens=kv, truncated=tokens >= self._max_tokens)  # fmt: skip

            self.say(machine.key, ended)
            return
        request.is_waiting = True
        turn, kv = request.turn, machine.kv
        episode.tokens = max(episode.tokens, tokens)

        def turn_ended(at: float) -> Input | None:
            if self._aborts[key] > aborts:
                return None
            self._ask_environment(key, episode, turn)
            return told.TurnEnded(at=at, instance=machine.key, trajectory=key, tokens=tokens, clock=clock,
                                  kv_tokens=kv)  # fmt: skip

        self.say(machine.key, turn_ended)

    def _soon(self, work: Work) -> None:
        self.work.append(work)

    def _score(self, key: int, episode: Episode) -> None:
        group, member = divmod(key, self._group_size)
        is_flat = Random(f"{group} flat").random() < self.zero_variance_rate
        reward = 0.0 if is_flat else float(member % 2)

        def scored(at: float) -> Input | None:
            if self._episodes.get(key) is not episode:
                return None
            self.scored.add(key)
            self.evaluations.pop(key, None)
            return told.Scored(at=at, trajectory=key, reward=reward)

        self.say("rewards", scored)

    def _ask_environment(self, key: int, episode: Episode, turn: int) -> None:
        if self._episodes.get(key) is episode and episode.asked_turn != turn:
            episode.asked_turn = turn
            self._soon(lambda: self._answer(key, episode, turn))

    def _answer(self, key: int, episode: Episode, turn: int) -> None:
        fails = self._rng.random() < self.environment_failure_rate

        def answered(at: float) -> Input | None:
            if self._episodes.get(key) is not episode:
                return None
            episode.asked_turn = None
            if fails:
                return told.EnvironmentFailed(at=at, trajectory=key, reason="failed")
            episode.tokens = max(episode.tokens, episode.ends[turn] + ENV_TOKENS)
            return told.EnvironmentReplied(at=at, trajectory=key, tokens=ENV_TOKENS)

        self.say("environments", answered)

    def _journal(self, request: Request) -> None:
        episode = self._episodes[request.trajectory]
        episode.tokens = max(episode.tokens, request.tokens - self._rng.randint(0, 3))

    def _heard(self, key: int) -> Machine | None:
        """The machine control means, unless it is dead by now."""
        machine = self.machines.get(key)
        return machine if machine is not None and machine.is_known else None

    def _start(self, d: do.Start) -> None:
        key = d.trajectory
        assert key == d.group * self._group_size + d.member
        pinned = self.evaluations.get(key) if d.evaluation else self.version_of.get(d.group)
        if d.evaluation and pinned is None:
            pinned = self.evaluations[key] = d.version
        assert self.mixes_versions or pinned == d.version, f"{d} is pinned to {pinned}"
        self._check_exists(d.version)
        assert key not in self.closed, f"{key} was closed"
        assert d.group not in self.committed, f"{key} was trained on"
        assert key not in self._transit, f"{key} is on its way"
        for machine in self.machines.values():
            assert key not in machine.requests, f"{key} runs already on {machine.key}"
        self._failing.discard(key)
        episode = self._episodes.get(key)
        if episode is None or episode.attempt != d.attempt:
            assert d.attempt > (episode.attempt if episode else -1)
            assert d.generated_tokens == 0
            episode = self._episodes[key] = Episode(d.attempt, self._turn_ends())
            self.scored.discard(key)
        machine = self._heard(d.instance)
        if machine is not None:
            assert d.version in machine.versions, f"{d} but resident are {machine.versions}"
            assert not machine.is_lent, f"{d} but its devices train"
            assert not machine.is_interrupted, f"{d} but it changes its weights"
            machine.requests[key] = Request(d, episode)
            self._check_slots(machine)

    def _check_exists(self, version: int) -> None:
        assert version in range(self.newest + 1), f"version {version} was not published"
        assert version not in self._retired, f"version {version} is retired"

    def _check_slots(self, machine: Machine) -> None:
        coming = sum(move.target == machine.key for move, _ in self._transit.values())
        if self.checks_slots:
            assert len(machine.requests) + coming <= machine.spec.slots, f"{machine.key} is overbooked"

    def _turn_ends(self) -> list[int]:
        turns = 1
        while turns < 4 and self._rng.random() > 1.0 / self._mean_turns:
            turns += 1
        budget = (self._max_tokens - (turns - 1) * ENV_TOKENS) // turns
        skewed = [max(1, int(budget * self._rng.random() ** 3)) for _ in range(turns)]
        return [sum(skewed[: i + 1]) + i * ENV_TOKENS for i in range(turns)]

    def _resume(self, d: do.Resume) -> None:
        moving = self._transit.get(d.trajectory)
        if moving is not None and moving[0].target == d.instance:
            request: Request | None = moving[1]
        else:
            machine = self._heard(d.instance)
            request = machine.requests.get(d.trajectory) if machine else None
            if machine is not None and d.trajectory not in self._failing:
                assert request is not None, f"{d}: its KV is not there"
        if request is not None:
            assert request.is_waiting, f"{d} but it is not waiting"
            request.is_waiting = False
            request.is_resting = False
            request.tokens += d.appended_tokens
            request.go_on()

    def _abort(self, d: do.Abort) -> None:
        self._aborts[d.trajectory] += 1
        move, request = self._transit.get(d.trajectory, (None, None))
        if move is not None and move.target == d.instance:
            del self._transit[d.trajectory]
        elif (machine := self._heard(d.instance)) is not None:
            request = machine.requests.pop(d.trajectory, None)
        if request is not None:
            self._journal(request)

    def _park(self, d: do.Park) -> None:
        machine = self._heard(d.instance)
        request = machine.requests.get(d.trajectory) if machine is not None else None
        if machine is None:
            return
        if request is None or not request.is_waiting:
            assert machine.spec.parks, f"{d}, which this engine does not do"
            machine.parked.add(d.trajectory)
            return
        # One that was decoding when it was parked may be parked again when its end is heard of.
        assert not request.is_resting or machine.spec.parks, f"{d} twice"
        held = sum(each.kv for each in machine.requests.values() if each.is_resting or each is request)
        if held > machine.spec.host_kv_tokens:
            # It was decoding when that was decided.
            assert machine.spec.parks, f"{d}: {held} tokens where host memory has less"
            return
        request.is_resting = True
        self.num_rested += 1

    def _evict(self, d: do.Evict) -> None:
        machine = self._heard(d.instance)
        request = machine.requests.pop(d.trajectory, None) if machine else None
        if request is not None:
            assert request.is_waiting, f"{d} but it decodes"
            self._episodes[d.trajectory].tokens = request.tokens

    # --- moving ---

    def _move(self, d: do.Move) -> None:
        assert d.source != d.target, d
        assert d.trajectory not in self._transit, f"{d} but it is on its way already"
        self._last_move[d.trajectory] = d
        source, target = self._heard(d.source), self._heard(d.target)
        request = source.requests.pop(d.trajectory, None) if source else None
        if request is None or target is None:
            self._failing.add(d.trajectory)
        if request is None:
            return
        is_going = source is not None and source.is_interrupted
        assert is_going or request.version == d.version, f"{d} of a request under {request.version}"
        request.version = d.version
        if target is None:
            self._journal(request)
            return
        assert d.version in target.versions, f"{d} but the target holds {target.versions}"
        assert not target.is_lent, f"{d} to one that is lent"
        assert d.with_kv or target.spec.continues, f"{d} to one that cannot go on with it"
        self._transit[d.trajectory] = (d, request)
        self._check_slots(target)
        self._soon(lambda: self._arrive(d))

    def _arrive(self, d: do.Move) -> None:
        """The source tells what became of a move, after all it said of the request before."""
        move, request = self._transit.get(d.trajectory, (None, None))
        if move is not d or request is None:
            return
        del self._transit[d.trajectory]
        target = self.machines[d.target]
        if self._rng.random() < self.move_failure_rate:
            self._journal(request)
            self._failing.add(d.trajectory)

            def failed(at: float) -> Input | None:
                if self._last_move[d.trajectory] is not d:
                    return None
                return told.MoveFailed(at=at, trajectory=d.trajectory, reason="no route")

            self.say(d.source, failed)
            return
        assert request.version in target.versions or target.is_interrupted, f"{d}: weights are gone"
        target.requests[d.trajectory] = request
        aborts = self._aborts[d.trajectory]

        def moved(at: float) -> Input | None:
            if self._aborts[d.trajectory] > aborts:
                return None
            return told.Moved(at=at, trajectory=d.trajectory, source=d.source, target=d.target, kv_bytes=8)

        self.say(d.source, moved)

    # --- weights and devices ---

    def _load(self, d: do.Load) -> None:
        self._check_exists(d.version)
        machine = self._heard(d.instance)
        if machine is None:
            return
        for version in d.drop:
            self._free(machine, version)
        resident = machine.versions | {version for version, _ in machine.loads}
        assert d.version not in resident, f"{d} but resident are {resident}"
        assert len(resident) + 1 <= machine.spec.versions_that_fit, f"{d} does not fit beside {resident}"
        machine.loads.append((d.version, False))
        self._soon(lambda: self._end_load(machine))

    def _drop(self, d: do.Drop) -> None:
        machine = self._heard(d.instance)
        if machine is not None:
            self._free(machine, d.version)

    @staticmethod
    def _free(machine: Machine, version: int) -> None:
        assert version in machine.versions, f"{machine.key} does not hold {version}"
        used = [r.trajectory for r in machine.requests.values() if r.version == version]
        assert not used, f"version {version} on {machine.key} is used by {used}"
        machine.versions.discard(version)

    def _interrupt(self, d: do.Interrupt) -> None:
        machine = self._heard(d.instance)
        if machine is not None:
            machine.loads.append((d.version, True))
            self._soon(lambda: self._end_load(machine))

    def _end_load(self, machine: Machine) -> None:
        if not machine.is_alive or machine.is_hung:
            return
        version, interrupts = machine.loads.popleft()
        if interrupts:
            machine.versions = set()
            for request in machine.requests.values():
                request.version = version
            for move, request in self._transit.values():
                if move.target == machine.key:
                    request.version = version
        machine.versions.add(version)
        self.say(machine.key, lambda at: told.Loaded(at=at, instance=machine.key, version=version))

    def _lend(self, d: do.Lend) -> None:
        assert self._taken is not None, f"{d}, and no step begins"
        machine = self._heard(d.instance)
        if machine is not None:
            assert machine.spec.elastic, f"{d} of one that is not elastic"
            assert not machine.is_lent, f"{d} twice"
            machine.is_lent = True
            self.say(machine.key, lambda at: told.Lent(at=at, instance=machine.key))

    def _give_back(self, d: do.Return) -> None:
        machine = self._heard(d.instance)
        if machine is None:
            return
        assert machine.is_lent, f"{d} of one that is not lent"
        assert not machine.is_returning, f"{d} twice"
        machine.is_returning = True
        self._soon(lambda: self._end_lending(machine))

    def _end_lending(self, machine: Machine) -> None:
        if machine.is_alive and not machine.is_hung:
            machine.is_lent = machine.is_returning = False
            self.say(machine.key, lambda at: told.Returned(at=at, instance=machine.key))

    def _restart(self, d: do.Restart) -> None:
        machine = self._heard(d.instance)
        if machine is not None:
            self.die(d.instance, loses_messages=True, silently=True)
            machine.is_known = False
            self._soon(lambda: self.join(d.instance, machine.spec, self.newest))

    # --- groups and batches ---

    def _admit(self, d: do.Admit) -> None:
        assert d.group not in self.version_of, f"{d} twice"
        self._check_exists(d.version)
        self.version_of[d.group] = d.version

    def active_groups(self) -> int:
        """Groups admitted, and neither taken nor closed as a whole."""
        ended = self.committed.union(self._believed)
        return sum(g not in ended and not self._is_closed(g) for g in self.version_of)

    def _is_closed(self, group: int) -> bool:
        return all(key in self.closed for key in self._members(group))

    def _members(self, group: int) -> range:
        return range(group * self._group_size, (group + 1) * self._group_size)

    def _check_finished(self, group: int) -> None:
        assert group in self.version_of, f"group {group} was never admitted"
        assert group not in self.committed, f"group {group} was trained on already"
        left = {key for key in self._members(group) if key not in self.closed}
        assert left, f"group {group} was closed"
        assert left <= self.scored, f"group {group} is not finished"

    def _hand(self, d: do.Hand) -> None:
        assert self.training is None, f"{d} while a step is in flight"
        assert d.batch == self.newest, f"{d} for another batch than {self.newest}"
        self._check_finished(d.group)
        handed = self._handed.setdefault(d.batch, set())
        assert d.group not in handed, f"{d} twice"
        if not self._is_trainer_down:
            handed.add(d.group)

    def _take(self, d: do.Take) -> None:
        assert self.training is None, f"{d} while a step is in flight"
        assert d.batch == self.newest, f"{d} trains another version than {self.newest}"
        for group in d.groups:
            self._check_finished(group)
        assert self._handed.pop(d.batch, set()) <= set(d.groups), f"{d} leaves out what was handed over"
        self._taken, self._believed = d, d.groups
        if not self._is_trainer_down:
            self.training = d
            self._soon(lambda: self._say_trained(d))
            self._soon(lambda: self._publish(d))

    def _say_trained(self, d: do.Take) -> None:
        """Before or after the version is durable: words may overtake each other."""
        if any(machine.is_lent for machine in self.machines.values()):
            self.say("trainer", lambda at: told.Trained(at=at) if self.training is d else None)

    def _publish(self, d: do.Take) -> None:
        if self.training is not d:
            return

        def published(at: float) -> Input | None:
            self.training, self._is_durable, self._believed = None, False, ()
            self.newest = d.batch + 1
            self.committed.update(d.groups)
            return told.Published(at=at, version=d.batch + 1, train_s=1.0)

        self._is_durable = True
        self.say("trainer", published)

    def _close(self, d: do.Close) -> None:
        for key in d.members:
            assert key not in self.closed, f"trajectory {key} ended twice"
            assert d.group not in self.committed
            self.closed.add(key)
            self.evaluations.pop(key, None)

    def _retire(self, d: do.Retire) -> None:
        v = d.version
        self._check_exists(v)
        assert v < self.newest, f"{d} is the newest"
        self._retired.add(v)
        for machine in self.machines.values():
            held = machine.versions | {version for version, _ in machine.loads}
            keeps = machine.is_known and not machine.is_interrupted
            assert not keeps or v not in held, f"{d} but instance {machine.key} holds it"
        assert self.mixes_versions or v not in self.evaluations.values(), f"{d} but an evaluation uses it"
        for group, version in self.version_of.items():
            done = group in self.committed or group in self._believed or self._is_closed(group)
            assert version != v or done, f"{d} but group {group} uses it"

    def _finish(self, d: do.Finish) -> None:
        self.is_finished = True
