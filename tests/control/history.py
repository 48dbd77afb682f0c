"""Random histories: a control plane, a fake executor, and a fate that interleaves them.

A history is a function of its seed. Fate decides what happens next: which message arrives, which
work ends, which machine decodes, dies, hangs or joins. After a while it stops doing harm, and then
the run must come to its end by itself.
"""

from collections import deque
from itertools import islice
from random import Random

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.plane import ControlPlane
from dora_rl.control.schedules import make_schedule
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Admit, Close, Take
from dora_rl.core.inputs import Input, PromptsOffered, QueuedPrompt
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Batch, Control
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.envs.prompt_offers import PromptOffers
from dora_rl.sim.audit import Audit

from .episode_executor import EpisodeExecutor
from .fake_executor import Executor, Machine
from .role_executor import FROZEN, RoleExecutor

SCHEDULES = ("sync", "one_step_off", "steps_off", "partial", "counted", "async_ratio", "dora_onset", "dora")


class Offering:
    """A source whose offers come in blocks of any size and order, in time or late, but always come.

    A fate of its own: how prompts come changes nothing else that is drawn.
    """

    def __init__(self, seed: int, tokens: list[int], plane: ControlPlane, *, block: int) -> None:
        self._rng = Random(f"offers {seed}")
        self.tokens = tokens
        self._plane = plane
        self._block = block
        self._offers = PromptOffers(tokens)
        self._low_water = self._rng.choice((1, 2, plane.prompts.most_at_once))
        self._is_asked = False
        self._offered: deque[QueuedPrompt] = deque()
        self._has_environments = plane.prompts.ready is not plane.prompts.waiting
        self._prompt_of: dict[int, tuple[int, int]] = {}
        self._put_off: list[tuple[int, int]] = []

    def look(self, executor: Executor) -> None:
        """Ask for more where few are queued; the answer takes its time."""
        if self._is_asked or len(self._plane.prompts) >= self._low_water:
            return
        self._is_asked = True
        rows = self._rng.choices(range(len(self.tokens)), k=self._rng.randint(0, 2 * self._low_water))
        answer = self._offers.offer(rows, 0.0)
        executor.work.append(
            lambda: executor.say("source", lambda at: PromptsOffered(at=at, prompts=answer.prompts))
        )

    def heard(self, event: Input) -> None:
        if isinstance(event, PromptsOffered):
            self._is_asked = False
            self._offered += () if self._has_environments else event.prompts
        elif isinstance(event, told.Opened) and not event.is_evaluation:
            self._offered.append(QueuedPrompt(epoch=event.epoch, row=event.row, tokens=event.tokens))

    def check(self, admit: Admit) -> None:
        """Groups start in the order in which their prompts were offered, or opened, or nearly so."""
        self._prompt_of[admit.group] = (admit.epoch, admit.row)
        if (admit.epoch, admit.row) in self._put_off:
            self._put_off.remove((admit.epoch, admit.row))
            return
        due = list(islice(self._offered, self._block))
        started = [prompt for prompt in due if (admit.epoch, admit.row) == (prompt.epoch, prompt.row)]
        assert started, f"{admit} where {due} are due"
        self._offered.remove(started[0])

    def closed(self, close: Close) -> None:
        """What a group was put off for may come again, once."""
        if close.outcome == "put off: long":
            self._put_off.append(self._prompt_of[close.group])


class History:
    """One run of random size, under a random schedule, with random things going wrong."""

    def __init__(
        self, seed: int, *, is_episodic: bool = False, has_roles: bool = False, **fixed: object
    ) -> None:
        self.rng = rng = Random(seed)
        self.seed = seed
        self._is_episodic = is_episodic
        self._has_roles = has_roles
        self.batch = Batch(groups=rng.randint(1, 4), group_size=rng.randint(1, 3))
        self.steps = rng.randint(2, 6)
        self.control = self._draw_control(fixed)
        self.is_rough = rng.random() < 0.8
        max_tokens = rng.choice((4, 20, 60)) if not is_episodic else rng.choice((20, 60))
        self._max_open = self._draw_max_open() if is_episodic else None
        prompts = [rng.randint(1, 9) for _ in range(rng.randint(1, 12))]
        self.plane = ControlPlane(
            self.control,
            self.batch,
            steps=self.steps,
            estimates=Estimates(
                lengths=LearnedLengths(prior_tokens=max_tokens / 3, max_tokens=max_tokens),
                load_s=rng.choice((0.01, 2.0)),
                move_s=0.01,
                step_s=0.01,
            ),
            episode=self._draw_episode() if is_episodic else None,
            frozen=(FROZEN,) if has_roles else (),
        )
        block = 2 * self.batch.groups if self.control.long_first else 1
        self.prompts = Offering(seed, prompts, self.plane, block=block)
        schedule = make_schedule(self.control, self.batch)
        self.max_staleness = schedule.staleness_limit
        self.fixed_target = schedule.active_groups
        self.audit = Audit(
            batch_groups=self.batch.groups,
            group_size=self.batch.group_size,
            max_staleness=schedule.staleness_limit,
        )
        self.executor = self._make_executor(max_tokens)
        self.longest_context = max(prompts) + max_tokens
        self.now = 0.0
        self.num_inputs = 0
        self.evaluations_asked = 0
        self._specs = [self._draw_spec() for _ in range(rng.randint(1, 4))]
        for key, spec in enumerate(self._specs):
            self.executor.join(key, spec, 0)
        self.prompts.look(self.executor)

    # --- drawing the set-up ---

    def _draw_control(self, fixed: dict[str, object]) -> Control:
        rng, b = self.rng, self.batch
        schedule = rng.choice((*SCHEDULES, "dora", "dora"))
        if self._has_roles and schedule in ("partial", "counted"):
            schedule = "dora"  # What goes on under newer versions has no frozen one.
        knobs: dict[str, object] = {
            "schedule": schedule,
            "max_staleness": rng.randint(0, 3),
            "active_groups": rng.choice((None, None, b.groups, b.groups + 1, 3 * b.groups)),
            "adapt_staleness": rng.random() < 0.25,
            "stream": rng.random() < 0.5,
            "placement": rng.choice(("auto", "exclusive", "shared")),
            "rebalance": rng.random() < 0.85,
            "refill": rng.random() < 0.8,
            "kv_reuse": rng.random() < 0.8,
            "queue_scheduling": rng.random() < 0.85,
            "prompt_replication": rng.random() < 0.7,
            "redundant_groups": rng.randint(0, 2) if schedule in ("async_ratio", "sync") else 0,
            "filter_zero_variance": b.group_size > 1 and rng.random() < 0.4,
            "min_members": rng.randint(1, b.group_size),
            "environment_tries": rng.randint(1, 3),
            "long_first": rng.random() < 0.3,
        }
        if self._is_episodic:
            knobs["environment_grace_s"] = rng.choice((4.0, 20.0))
            knobs["redundant_groups"] = 0 if schedule == "sync" else knobs["redundant_groups"]
        if schedule == "async_ratio" and b.group_size > 1 and rng.random() < 0.4:
            # Of one member alone the rewards never differ.
            least = 2 if knobs["filter_zero_variance"] else 1
            knobs["redundant_members"] = rng.randint(0, b.group_size - least)
        knobs |= fixed
        if knobs["schedule"] == "async_ratio" and knobs["max_staleness"]:
            knobs["async_ratio"] = rng.choice((None, knobs["max_staleness"], knobs["max_staleness"] - 0.4))
            knobs["suspend"] = rng.random() < 0.4 and not self._has_roles
        return Control(**knobs)  # type: ignore[arg-type]

    def _draw_max_open(self) -> int | None:
        size = self.batch.group_size
        return self.rng.choice((None, size, 2 * size + 1, 4 * self.batch.groups * size))

    def _draw_episode(self) -> EpisodeSettings:
        ahead = self.rng.choice((None, 1, 2, 9))
        return EpisodeSettings(function="guess", max_open=self._max_open, ahead=ahead)

    def _make_episode_executor(self, max_tokens: int) -> EpisodeExecutor:
        rng = self.rng
        kind = RoleExecutor if self._has_roles else EpisodeExecutor
        executor = kind(rng, group_size=self.batch.group_size, max_tokens=max_tokens, max_open=self._max_open)
        executor.zero_variance_rate = rng.choice((0.0, 0.3))
        executor.checks_slots = self.control.queue_scheduling
        executor.mixes_versions = self.control.mixes_versions
        executor.hang_rate = rng.choice((0.0, 0.05))
        executor.branch_rate = rng.choice((0.0, 0.3))
        if self.is_rough:
            executor.move_failure_rate = rng.choice((0.0, 0.3))
            executor.environment_failure_rate = rng.choice((0.0, 0.15))
            executor.opening_failure_rate = rng.choice((0.0, 0.3))
        return executor

    def _make_executor(self, max_tokens: int) -> Executor:
        if self._is_episodic:
            return self._make_episode_executor(max_tokens)
        rng = self.rng
        mean_turns = rng.choice((1.0, 1.0, 2.0))
        executor = Executor(
            rng, group_size=self.batch.group_size, max_tokens=max_tokens, mean_turns=mean_turns
        )
        executor.zero_variance_rate = rng.choice((0.0, 0.3, 0.6))
        executor.checks_slots = self.control.queue_scheduling and mean_turns == 1.0
        executor.mixes_versions = self.control.mixes_versions
        if self.is_rough:
            executor.move_failure_rate = rng.choice((0.0, 0.3))
            executor.environment_failure_rate = rng.choice((0.0, 0.2))
        return executor

    def _draw_spec(self) -> InstanceSpec:
        rng = self.rng
        kv = self.longest_context + rng.choice((0, 200, 2000))
        return InstanceSpec(
            slots=rng.randint(1, 6),
            kv_tokens=kv,
            version_kv_tokens=rng.choice((0, kv // 5, kv // 2)),
            max_versions=rng.randint(1, 4) if not self._has_roles else rng.randint(3, 5),
            node=rng.randint(0, 1),
            elastic=rng.random() < 0.25,
            moves_kv=rng.random() < 0.9,
            continues=rng.random() < 0.8 or self._is_episodic,
            parks=rng.random() < 0.7,
            host_kv_tokens=rng.choice((0, kv // 3, 4 * kv)) if self._is_episodic else 0,
        )

    # --- fate ---

    def run(self, *, rough_acts: int = 250, most_acts: int = 6000) -> None:
        """Let things happen until control says that all steps are done."""
        for act in range(most_acts):
            if self.executor.is_finished:
                self._judge()
                return
            self._act(does_harm=self.is_rough and act < rough_acts)
        raise AssertionError(f"no end in sight: {self.describe()}")

    def _act(self, *, does_harm: bool) -> None:
        rng, executor = self.rng, self.executor
        self.now += rng.random() * 0.2
        draw = rng.random()
        if draw < 0.5 and self._deliver():
            return
        if draw < 0.72 and executor.work:
            self._end_some_work()
        elif draw < 0.94:
            busy = [m for m in executor.machines.values() if m.decodes]
            if busy:
                executor.advance(rng.choice(busy), rng.choice((1, 3, 20)))
            else:
                self._tick()
        elif draw < 0.97 or not does_harm:
            self._tick()
        else:
            self._harm()

    def _deliver(self) -> bool:
        outboxes = self.executor.outboxes
        waiting = [source for source, messages in outboxes.items() if messages]
        if not waiting:
            return False
        event = outboxes[self.rng.choice(waiting)].popleft()(self.now)
        if event is not None:
            self.tell(event)
        return True

    def _end_some_work(self) -> None:
        work = self.executor.work
        i = self.rng.randrange(len(work))
        work[i], work[-1] = work[-1], work[i]
        work.pop()()

    def _tick(self) -> None:
        self.now += 5.0
        for machine in self.executor.machines.values():
            self.executor.report(machine)
        self.tell(told.Tick(at=self.now))

    def _harm(self) -> None:
        rng, executor = self.rng, self.executor
        kind = rng.choice(("die", "die", "rejoin", "hang", "lose_step", "environment", "evaluate", "grow"))
        if kind == "lose_step":
            executor.lose_step()
        elif kind == "environment" and (live := executor.live_trajectories()):
            executor.fail_environment(rng.choice(live))
        elif kind == "evaluate":
            self.evaluations_asked += 1
            asked = (QueuedPrompt(epoch=0, row=0, tokens=self.prompts.tokens[0]),) * rng.randint(1, 3)
            executor.say("user", lambda at: told.EvaluationAsked(at=at, prompts=asked))
        elif kind == "grow" and len(self._specs) < 6:
            self._specs.append(self._draw_spec())
            executor.join(len(self._specs) - 1, self._specs[-1], rng.randint(0, executor.newest))
        elif kind in ("die", "rejoin", "hang") and executor.machines:
            self._harm_machine(kind, rng.choice(list(executor.machines.values())))

    def _harm_machine(self, kind: str, machine: Machine) -> None:
        rng, executor, key = self.rng, self.executor, machine.key
        if not machine.is_known:
            return
        if kind == "hang":
            machine.is_hung = True
            return
        executor.die(key, loses_messages=rng.random() < 0.5, silently=kind == "rejoin")

        def rejoin() -> None:
            if key not in executor.machines:
                executor.join(key, machine.spec, rng.randint(0, executor.newest))

        if kind == "rejoin":
            rejoin()
        else:
            executor.work.append(rejoin)

    # --- telling, and looking at what came of it ---

    def tell(self, event: Input) -> None:
        self.prompts.heard(event)
        decisions = self.plane.handle(event)
        self.num_inputs += 1
        self.executor.begin()
        self.audit.watch(event, decisions)
        for decision in decisions:
            self.executor.carry_out(decision)
            if isinstance(decision, Take):
                self._check_take(decision)
            elif isinstance(decision, Admit):
                self.prompts.check(decision)
            elif isinstance(decision, Close):
                self.prompts.closed(decision)
        self.prompts.look(self.executor)
        if self.num_inputs % 4 == 0:
            self.plane.check_integrity()
        assert not self.audit.violations, self.audit.violations
        if self.fixed_target is not None:
            active = self.executor.active_groups()
            # The batch that an idle trainer has still to take does not count.
            leaving = 0 if self.plane.is_training else self.plane.leaving_groups
            assert active - leaving <= max(self.fixed_target, self.batch.groups), (
                f"{active} groups are active"
            )

    def _check_take(self, take: Take) -> None:
        oldest = min(self.executor.version_of[group] for group in take.groups)
        if self.max_staleness is not None:
            assert take.batch - oldest <= self.max_staleness, f"{take} holds version {oldest}"
        if self.control.fixes_versions:
            # Whatever came to nothing, died or was late: only the first batches have no version so old.
            assert set(take.staleness) == {min(take.batch, self.control.staleness_bound)}, take
        assert len(set(take.groups)) == len(take.groups) == self.batch.groups

    def _judge(self) -> None:
        """The run is over: exactly N steps, and every admitted trajectory in one batch or one outcome."""
        executor = self.executor
        self.plane.check_integrity()
        assert executor.newest == self.audit.steps == self.steps
        assert len(executor.committed) == self.steps * self.batch.groups
        assert self.audit.lost(set()) == 0, "trajectories are nowhere"
        assert self.audit.duplicated() == 0
        assert self.control.mixes_versions or self.audit.mixed() == 0
        assert self.max_staleness is None or self.audit.worst_staleness <= self.max_staleness
        assert executor.active_groups() == 0
        if isinstance(executor, RoleExecutor):
            live = {key for key, _, _ in executor.awaited.values()}
            assert live <= executor.evaluations.keys(), f"nobody answers the roles of {live}"
        if isinstance(executor, EpisodeExecutor):
            assert not executor.ahead, f"the environments of {executor.ahead} stay open for nobody"
        for machine in executor.machines.values():
            # Only what was admitted: an evaluation may run on, also one whose end was heard of too late.
            left = [key for key in machine.requests if key // self.batch.group_size in executor.version_of]
            assert not left, f"trajectories {left} run on for nobody on {machine.key}"

    def describe(self) -> str:
        machines = {
            m.key: (sorted(m.versions), list(m.loads), sorted(m.requests), m.is_known, m.is_hung, m.is_lent)
            for m in self.executor.machines.values()
        }
        return f"seed {self.seed}, {self.control}, {self.batch}, {self.plane.window}, {machines}"
