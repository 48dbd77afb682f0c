"""The orchestrator of a live run: one loop between the control plane and the workers. Never reaches torch.

    messages ──> inputs, payloads, effects ──> control ──> journal, event log ──> effects, decisions
        ^                                                                                │
        └──────────── instances, trainer, reward workers <─────────── commands <─────────┘

| waits for                     | at most                | then                                      |
|-------------------------------|------------------------|-------------------------------------------|
| anyone to speak               | the next tick          | control looks at placement and silence    |
| an instance to join           | `patience.start_s`     | it is started again, a few times          |
| an instance to speak          | `control.silence_s`    | it is started again, after a pause        |
| the trainer's step            | `patience.step_s`      | it is started again and catches up        |
| a source's choice of prompts  | `order.time_limit_s`   | it is started again, a few times          |
| a reward                      | `scoring.time_limit_s` | a failure that is counted                 |
| an environment                | `episode.call_limit_s` | another attempt, a few times              |
| anything to end at all        | `patience.progress_s`  | the run ends with the reason              |
"""

import time

from dora_rl.core import inputs as told
from dora_rl.core.decisions import Admit, Start
from dora_rl.core.errors import DoraError
from dora_rl.core.history import Event, Watcher
from dora_rl.core.named import Objects
from dora_rl.envs.prompt_offers import exhausted
from dora_rl.launch.protocol import Launch
from dora_rl.launch.waiting import Interrupts, wait_for
from dora_rl.run import messages as say
from dora_rl.run.decision_executor import DecisionExecutor
from dora_rl.run.episodes.host import EpisodeHost
from dora_rl.run.episodes.opened_prompts import open_pool
from dora_rl.run.episodes.pool import EpisodePool
from dora_rl.run.evaluations import EvaluationTracker
from dora_rl.run.instance_inbox import InstanceInbox
from dora_rl.run.instances import InstancePool
from dora_rl.run.log_limit import LogLimit
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.open_run import OpenRun
from dora_rl.run.received import Received, ScoreTrajectory
from dora_rl.run.request_table import PartialTrajectory, RequestMoves, RequestTable
from dora_rl.run.rewards.pool import ScorerPool
from dora_rl.run.rewards.queue import RewardQueue
from dora_rl.run.trainer_process import TrainerProcess
from dora_rl.run.wished_instances import Scaling
from dora_rl.run.worker_deaths import WorkerDeaths, WorkerDied
from dora_rl.store.journal_records import PromptTokens

_PACE_S, _GPU_PACE_S = 0.01, 0.002
"""Least time from one turn of the loop to the next: what ends within it is written down in one transaction.
Turns take time from those who work on the same CPUs; a GPU stands still until somebody looks."""


class Orchestrator:
    """One run, from where it stands to its end."""

    def __init__(
        self,
        run: OpenRun,
        launch: Launch,
        watchers: tuple[Watcher, ...] = (),
        *,
        objects: Objects | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        """Build every part, each from those before it, and start the workers; `run` closes them."""
        setup, recipe, layout, past = run.setup, run.setup.recipe, run.layout, run.past
        plane, journal, prompts, close = run.plane, run.journal, run.prompts, run.closing.callback
        self._run = run
        self._clock_began = time.monotonic() - past.at

        # What others report to.
        self.interrupts = interrupts or Interrupts()
        if interrupts is None:
            close(self.interrupts.close)
        self.deaths = WorkerDeaths(recipe.patience, layout.orchestrator_log)
        self._log_limit = LogLimit(layout.logs)
        self.metrics = MetricsWriter(
            layout.metrics_log,
            layout.metrics,
            plane,
            newest_version=journal.newest_version,
            journalled=journal.step_metrics(),
            data_source=prompts.data_source,
        )
        close(self.metrics.close)
        self._evaluations = EvaluationTracker(
            recipe.evaluation, recipe.steps, prompts.table, self.metrics, past.evaluations
        )

        # The workers.
        run.feed.start(layout, self.deaths, launch, objects or {})
        close(run.feed.close)
        self.trainer = TrainerProcess(
            setup,
            layout,
            journal,
            self.deaths,
            self.metrics,
            self._evaluations,
            launch=launch,
            epoch=run.fence.epoch,
            lead_anew=run.lead_anew,
            handed=past.handed,
            retired=past.retired,
            objects=objects,
        )
        close(self.trainer.close)
        self._instances = InstancePool(setup, layout, self.deaths, prompts.table.stop_tokens, launch=launch)
        close(self._instances.close)
        self._scaling = Scaling(layout)
        requests = RequestTable(_unfinished(run))
        self.rewards: RewardQueue | None = None
        self.episodes: EpisodeHost | None = None
        self._episode_pool: EpisodePool | None = None
        if recipe.episode is None:
            self.rewards = RewardQueue(
                setup.scoring,
                prompts,
                layout,
                plane,
                self.deaths,
                self.metrics,
                launch=launch,
                objects=objects,
                batch=recipe.batch,
            )
            close(self.rewards.close)
        else:
            self._episode_pool = open_pool(setup, layout, self.deaths, launch, objects or {})
            close(self._episode_pool.close)
            self.episodes = EpisodeHost(setup, prompts, requests, self._episode_pool, layout.environments_log)

        # Messages in, commands out.
        moves = RequestMoves(layout.root, self._instances, requests)
        close(moves.close)
        self._instance_inbox = InstanceInbox(plane, self._instances, requests, moves, self.episodes)
        self._executor = DecisionExecutor(
            setup,
            prompts,
            journal,
            inbox=self._instance_inbox,
            instances=self._instances,
            requests=requests,
            moves=moves,
            trainer=self.trainer,
            rewards=self.rewards,
            episodes=self.episodes,
        )

        # The loop's own state.
        self._watchers = (
            run.log.watch,
            run.feed.watch,
            self.metrics.watch,
            self._evaluations.watch,
            *watchers,
        )
        self._evaluating = {
            decision.group
            for _, decisions in past.evaluations
            for decision in decisions
            if isinstance(decision, Start) and decision.evaluation
        }
        """Evaluation groups whose prompt is journalled."""
        self._ticked_at = 0.0
        self._is_first_tick = True
        self._turned_at = 0.0
        self._progress: tuple[int, ...] = ()
        self._progress_at = time.monotonic()
        self._is_leaving = False

    # --- the loop -------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of the run's own clock, which goes on where it stood when the run was cut short."""
        return time.monotonic() - self._clock_began

    @property
    def failures(self) -> dict[str, int]:
        """Failures of reward functions or environments since this process began, by their labels."""
        if self.rewards is not None:
            return dict(self.rewards.failures.total)
        return dict(self.episodes.failures) if self.episodes is not None else {}

    def run(self) -> None:
        """Go on to the end of the run, or until interrupted."""
        self._await_functions()
        if not self.interrupts.count:
            if self.rewards is not None:
                self.rewards.check()
        elif not self._run.plane.is_done:
            return
        try:
            self._take_up()
            while not self._is_over():
                self._await_messages()
                self._heed_interrupts()
                at = self.now
                if (instances := self._scaling.look()) is not None:
                    self._instances.resize(instances)
                received = self._run.feed.read(self._run.plane, at)
                if self.episodes is not None:
                    received += self.episodes.read(at)
                received += self._instance_inbox.read(at)
                if self.rewards is not None:
                    received += self.rewards.read(at)
                received += self.trainer.read(at, self._instances.seconds)
                received.inputs += self.deaths.faults(at)
                received.inputs += self._tick(at)
                self._carry_out(received)
                self._log_limit.look()
                self._check_progress()
            if self._run.plane.is_stranded and not self._run.setup.data.train.stream:
                raise exhausted(self._run.plane.window.newest, self._run.plane.steps)
        except WorkerDied:
            # The last death is in the event log too.
            self._carry_out(Received(inputs=[*self.deaths.faults(self.now)]))
            raise

    def _carry_out(self, received: Received) -> None:
        """Let control decide about inputs, in order; make both durable; then act."""
        run = self._run
        events: list[Event] = [(each, run.plane.handle(each)) for each in received.inputs]
        decided = [decision for _, decisions in events for decision in decisions]

        # Groups of an evaluation are never admitted, they just start.
        starting: list[Admit | Start] = []
        for decision in decided:
            match decision:
                case Admit():
                    starting.append(decision)
                case Start(evaluation=True) if decision.group not in self._evaluating:
                    self._evaluating.add(decision.group)
                    starting.append(decision)
        prompts = [PromptTokens(group=each.group, tokens=self._prompt_of(each)) for each in starting]
        if events or received.payloads:
            run.journal.append(events, [*received.payloads, *prompts])
        for each, decisions in events:
            for watch in self._watchers:
                watch(each, decisions)
        run.log.flush()

        # Before anything is trained on failures.
        if self.rewards is not None:
            self.rewards.failures.check()
        if self.episodes is not None:
            self.episodes.check()
        self._executor.carry_out(received.effects, decided)

    def _prompt_of(self, starting: Admit | Start) -> tuple[int, ...]:
        """The prompt of a group that starts: its row's, or what its episodes begin with."""
        if self.episodes is not None:
            return self.episodes.prompt_of(starting)
        return self._run.prompts[starting.row].token_ids

    def _tick(self, at: float) -> list[told.Input]:
        has_fleet = any(map(self._instances.has_joined, self._instances.processes))
        # The first instance that joins is looked at once: nothing else would admit what it has room for.
        is_due = at - self._ticked_at >= self._run.setup.recipe.control.rebalance_period_s
        if not has_fleet or not (is_due or self._is_first_tick):
            return []
        self._ticked_at, self._is_first_tick = at, False
        return [told.Tick(at=at, instances=self._instances.seconds() if self.episodes is not None else {})]

    # --- waiting --------------------------------------------------------------------------------

    def _await_functions(self) -> None:
        """Wait until the user's functions are imported, or the user interrupts."""
        if self.rewards is not None:
            self._await_rewards(self.rewards.pool)
        while self._episode_pool is not None and not (self._episode_pool.is_ready or self.interrupts.count):
            wait_for(self._episode_pool.handles, [self.interrupts], 1.0)
            self._episode_pool.words()

    def _await_rewards(self, pool: ScorerPool) -> None:
        while not (pool.is_ready or self.interrupts.count):
            pool_s = pool.wait_s()
            wait_for([], [pool, self.interrupts], 1.0 if pool_s is None else min(1.0, pool_s))
            pool.poll()

    def _await_messages(self) -> None:
        setup = self._run.setup
        pace_s = _PACE_S if setup.devices.instance_device == "cpu" else _GPU_PACE_S
        time.sleep(max(0.0, self._turned_at + pace_s - time.monotonic()))
        due_s = self._ticked_at + setup.recipe.control.rebalance_period_s - self.now
        pools = [self.rewards.pool] if self.rewards is not None else []
        pool_s = next((pool.wait_s() for pool in pools), None)
        timeout_s = max(0.0, min(due_s, 1.0, 1.0 if pool_s is None else pool_s))
        instances = (process.handle for process in self._instances.processes.values())
        episodes = self._episode_pool.handles if self._episode_pool is not None else []
        handles = [*self._run.feed.handles, *instances, *self.trainer.handles, *episodes]
        wait_for(handles, [*pools, self.interrupts], timeout_s)
        self._turned_at = time.monotonic()

    # --- beginning and ending -------------------------------------------------------------------

    def _take_up(self) -> None:
        """Ask for the first evaluation; or go on with what was under way when the run was cut short."""
        run, journal = self._run, self._run.journal
        if not run.past.is_resumed:
            at = self.now
            received = run.feed.read(run.plane, at)
            received.inputs += self._evaluations.due(0, at)
            self._carry_out(received)
            return
        lost = [
            told.InstanceLost(at=self.now, instance=instance.id, reason="the run was resumed")
            for instance in run.plane.fleet
        ]
        dropped: list[told.Input] = []
        if self.episodes is not None:
            dropped = self.episodes.roles.take_up(run.plane, self.now)
            self.episodes.take_up(run.plane, journal, run.past.openings)
        steps = run.setup.recipe.steps
        more = [told.StepsExtended(at=self.now, steps=steps)] if steps > run.plane.steps else []
        self._carry_out(Received(inputs=[*lost, *dropped, *more]))
        if run.plane.is_done and journal.covered_step < run.setup.recipe.steps:
            self.trainer.write_checkpoint()
        if self.rewards is None:
            return
        for whole in journal.unscored():
            self.rewards.ask(
                ScoreTrajectory(
                    trajectory=whole.trajectory,
                    group=whole.group,
                    row=whole.key.row,
                    attempt=whole.key.attempt,
                    tokens=whole.response.tokens,
                )
            )

    def _heed_interrupts(self) -> None:
        """End the run when the user wants it, or when no prompts are left to go on with."""
        self.interrupts.drain()
        if (self.interrupts.count or self._run.plane.is_stranded) and not self._is_leaving:
            self._is_leaving = True
            self.trainer.leave(with_checkpoint=self._is_worth_a_checkpoint)
            if self._ends_with_stream:
                self._carry_out(Received(inputs=[*self._evaluations.due_at_end(self.now)]))

    @property
    def _is_worth_a_checkpoint(self) -> bool:
        plane = self._run.plane
        has_news = plane.is_training or plane.window.newest > self._run.journal.covered_step
        return has_news and self.trainer.abandon_part()

    def _is_over(self) -> bool:
        if self.interrupts.count > 1:
            return True
        if self.trainer.is_checkpoint_due:
            return False
        if self._is_leaving and not self._ends_with_stream:
            return True
        return (self._is_leaving or self._run.plane.is_done) and not self._evaluations.num_missing

    @property
    def _ends_with_stream(self) -> bool:
        """Whether the run is ending because its stream did, which is an end like any other."""
        is_stream = self._run.setup.data.train.stream
        return self._is_leaving and is_stream and self._run.plane.is_stranded and not self.interrupts.count

    def _check_progress(self) -> None:
        """Raise if nothing has ended for too long: a stuck run is an error, not a hang."""
        plane = self._run.plane
        w = plane.window
        progress = (w.taken, w.newest, w.num_active, w.num_finished, self._evaluations.num_missing)
        if progress != self._progress or plane.is_training:
            self._progress, self._progress_at = progress, time.monotonic()
        quiet_s = time.monotonic() - self._progress_at
        is_stuck = quiet_s > self._run.setup.recipe.patience.progress_s
        if is_stuck and plane.lacks_prompts:
            raise DoraError(
                f"the source of prompts had nothing to offer for {quiet_s:.0f} s",
                hint="let it choose rows, or let it choose None once there are no more",
            )
        if is_stuck:
            raise DoraError(
                f"nothing has ended for {quiet_s:.0f} s: {w}", hint="look into the logs of the run"
            )

    def stop(self) -> None:
        """Let every worker end in order; a second interrupt, or taking too long, kills the rest."""
        instances = (process.handle for process in self._instances.processes.values())
        handles = [*instances, *self.trainer.handles]
        for handle in handles:
            handle.send(say.Stop())
        until = time.monotonic() + self._run.setup.recipe.patience.stop_s
        while self.interrupts.count < 2 and time.monotonic() < until:
            left = [handle for handle in handles if handle.is_alive]
            if not left:
                break
            wait_for([*left], [], 0.1)
            for handle in left:
                handle.receive()


def _unfinished(run: OpenRun) -> list[PartialTrajectory]:
    """What exists of the trajectories that were being generated when the run was cut short."""
    if not run.past.is_resumed or run.setup.recipe.episode is not None:
        return []
    return [
        PartialTrajectory(start=run.past.starts[each.trajectory], tokens=list(each.response.tokens))
        for each in run.journal.unfinished()
    ]
