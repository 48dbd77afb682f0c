"""The loop of a live run: wait, translate, decide, write down, act.

    words of workers, judgements, ticks ──> inputs, payloads ──> control ──> journal, log ──> commands
         ^                                                                                        │
         └────────────────────────────────────────────────────────────────────────────────────────┘

| waits for                     | at most                | then                                      |
|-------------------------------|------------------------|-------------------------------------------|
| anyone to speak               | the next tick          | control looks at placement and silence    |
| an instance to join           | `patience.start_s`     | it is started again, a few times          |
| a joined instance to speak    | `control.silence_s`    | control has it started again              |
| the trainer's step            | `patience.step_s`      | it is started again and catches up        |
| a source's choice of prompts  | `order.time_limit_s`   | it is started again, a few times          |
| a reward                      | `scoring.time_limit_s` | a failure that is counted                 |
| anything to end at all        | `patience.progress_s`  | the run ends with the reason              |
"""

import time

from dora_rl.control.schedules import make_schedule
from dora_rl.core import inputs as told
from dora_rl.core.errors import DoraError
from dora_rl.envs.prompt_offers import exhausted
from dora_rl.launch.protocol import Launch
from dora_rl.launch.waiting import Interrupts, wait_for
from dora_rl.run import messages as say
from dora_rl.run.orchestrator.carrying import Carrying
from dora_rl.run.orchestrator.deaths import Deaths, WorkerDied
from dora_rl.run.orchestrator.evaluating import Evaluating
from dora_rl.run.orchestrator.instances import Instances
from dora_rl.run.orchestrator.metrics import Metrics
from dora_rl.run.orchestrator.moves import Moves
from dora_rl.run.orchestrator.opening import Opened
from dora_rl.run.orchestrator.requests import Draft, Requests
from dora_rl.run.orchestrator.scoring import Scoring
from dora_rl.run.orchestrator.training import Training
from dora_rl.run.orchestrator.translating import News, Translating
from dora_rl.run.orchestrator.writing import Scribe, Watcher

_PACE_S, _GPU_PACE_S = 0.01, 0.002
"""Least time from one look to the next: what ends within it is written down in one transaction. Looks take
time from those who work on the same CPUs; a GPU stands still until somebody looks."""


class Orchestrator:
    """One run, from where it stands to its end."""

    def __init__(self, opened: Opened, launch: Launch, watchers: tuple[Watcher, ...] = ()) -> None:
        setup, layout, plane, prompts = opened.setup, opened.layout, opened.plane, opened.prompts
        self._setup = setup
        self._opened = opened
        self._plane = plane
        self._journal = opened.journal
        self._feed = opened.feed
        self._began = time.monotonic() - opened.past.at
        close = opened.closing.callback
        self.interrupts = Interrupts()
        close(self.interrupts.close)
        self.deaths = Deaths(setup.recipe.patience.max_deaths, layout.logs / "orchestrator.log")
        self.metrics = Metrics(
            layout.metrics_log, layout.metrics, plane, newest_version=opened.journal.newest_version
        )
        close(self.metrics.close)
        self.evaluating = Evaluating(setup.recipe.evaluation, prompts, self.metrics)
        self._scribe = Scribe(plane, opened.journal, opened.log, prompts, (self._feed.watch, *watchers))
        self._requests = Requests()
        self._feed.start(layout, self.deaths, launch)
        close(self._feed.close)
        self.checkpoint: str | None = None
        self._progress: tuple[int, ...] = ()
        self._progress_at = time.monotonic()
        self._ticked_at = 0.0
        self._looked_at = 0.0
        self._is_leaving = False
        self.training = Training(setup, layout, opened.journal, self.deaths, self.metrics.took, launch=launch)
        close(self.training.close)
        self._instances = Instances(setup, layout, self.deaths, prompts.stop_tokens, launch=launch)
        close(self._instances.close)
        self.scoring = Scoring(
            setup.scoring,
            prompts,
            layout,
            plane,
            self.deaths,
            self.metrics.judged,
            launch=launch,
            max_failed=setup.recipe.batch.trajectories,
        )
        close(self.scoring.close)
        self._carrying = Carrying(
            setup,
            prompts,
            self._instances,
            self._requests,
            self.training,
            self.scoring,
            max_staleness=make_schedule(setup.recipe.control, setup.recipe.batch).max_staleness,
        )
        self._moves = Moves(layout.root, self._instances, self._requests, self._carrying.generate)
        close(self._moves.close)
        self._carrying.moves = self._moves
        self._translating = Translating(plane, self._instances, self._requests, self._moves, self._ended)

    # --- the loop -------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of the run's own clock."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """To the end, or until interrupted."""
        self._await_rewards()
        if not self.interrupts.count:
            self.scoring.check()
        elif not self._plane.is_done:
            return
        self._recall()
        try:
            while not self._is_over():
                self._wait()
                self._heed_interrupts()
                self._act(self._look())
                self._check_progress()
            if self._plane.is_stranded:
                raise exhausted(self._plane.window.newest, self._plane.steps)
        except WorkerDied:
            # The last death is in the event log too.
            self._scribe.decide(self.deaths.told(self.now), ())
            raise

    def _await_rewards(self) -> None:
        """Until the reward functions are imported, or somebody has seen enough."""
        pool = self.scoring.pool
        while not (pool.is_ready or self.interrupts.count):
            pool_s = pool.wait_s()
            wait_for([], [pool, self.interrupts], 1.0 if pool_s is None else min(1.0, pool_s))
            pool.poll()

    def _wait(self) -> None:
        pace_s = _PACE_S if self._setup.devices.instance_device == "cpu" else _GPU_PACE_S
        time.sleep(max(0.0, self._looked_at + pace_s - time.monotonic()))
        due_s = self._ticked_at + self._setup.recipe.control.rebalance_period_s - self.now
        pool_s = self.scoring.pool.wait_s()
        timeout_s = max(0.0, min(due_s, 1.0, 1.0 if pool_s is None else pool_s))
        handles = [*self._feed.handles, *(post.handle for post in self._instances.posts.values())]
        wait_for([*handles, self.training.handle], [self.scoring.pool, self.interrupts], timeout_s)
        self._looked_at = time.monotonic()

    def _look(self) -> News:
        """Everything that happened since."""
        at = self.now
        news = self._translating.look(at)
        news.inputs[:0] = self._offers(at)
        inputs, payloads = self.scoring.heard(at)
        news.inputs += inputs
        news.payloads += payloads
        self._hear_trainer(at, news)
        news.inputs += self.deaths.told(at)
        # Once they are durable, and before anything is trained on them.
        news.before.append(self.scoring.failures.check)
        if self._has_fleet and at - self._ticked_at >= self._setup.recipe.control.rebalance_period_s:
            self._ticked_at = at
            news.inputs.append(told.Tick(at=at))
        return news

    def _act(self, news: News) -> None:
        decisions = self._scribe.decide(news.inputs, news.payloads)
        for event in news.inputs:
            self.evaluating.hear(event)
        self.evaluating.watch(decisions, self.now)
        for act in news.before:
            act()
        self._carrying.carry_out(decisions)
        for act in news.after:
            act()

    def _offers(self, at: float) -> list[told.PromptsOffered]:
        queue = self._plane.prompts
        return [] if self._plane.is_done else self._feed.offers(len(queue), queue.most_at_once, at)

    @property
    def _has_fleet(self) -> bool:
        return any(map(self._instances.has_joined, self._instances.posts))

    # --- trajectories ---------------------------------------------------------------------------

    def _ended(self, trajectory: int) -> None:
        """Its end is durable: have it scored."""
        draft = self._requests.drafts.pop(trajectory, None)
        if draft is not None:
            start = draft.start
            self.scoring.ask(trajectory, start.group, start.row, draft.attempt, draft.tokens)

    # --- the trainer ----------------------------------------------------------------------------

    def _hear_trainer(self, at: float, news: News) -> None:
        for word in self.training.words():
            match word:
                case say.TrainerReady():
                    self._translating.open_store()
                case say.StepTrained():
                    if self._setup.devices.is_elastic:
                        news.inputs.append(told.Trained(at=at))
                case say.StepReplayed():
                    different = word.num_different or 0
                    news.inputs.append(told.Replayed(at=at, batch=word.batch, num_different=different))
                case say.StepPublished():
                    self._published(word, at, news)
                case say.CheckpointWritten():
                    news.after.append(lambda word=word: self._covered(word))  # type: ignore[misc]
        self.training.restart_if_gone()

    def _published(self, word: say.StepPublished, at: float, news: News) -> None:
        version = word.batch + 1
        news.inputs.append(told.Published(at=at, version=version, train_s=word.train_s))
        news.inputs += self.evaluating.due(version, at)
        is_due = version == self._setup.recipe.steps or version % self._setup.recipe.checkpoints.every == 0
        if is_due:
            self.training.want_checkpoint()
        # Before anything of the next step is sent: a step in progress cannot be written.
        news.before.append(self.training.published)
        self.metrics.trained(word, at)
        self.deaths.forgive()

    def _covered(self, word: say.CheckpointWritten) -> None:
        self.checkpoint = word.directory
        self._journal.covered(word.version)
        self._journal.prune()

    # --- beginning and ending -------------------------------------------------------------------

    def _recall(self) -> None:
        """Take up what was under way when the run was cut short; or ask for the first evaluation."""
        past = self._opened.past
        if not past.is_resumed:
            self._act(News(inputs=[*self._offers(self.now), *self.evaluating.due(0, self.now)]))
            return
        self.evaluating.recall(past.evaluations)
        self._scribe.recall(past.evaluations)
        self.training.handed = list(past.handed)
        self.training.retired = list(past.retired)
        for unfinished in self._journal.unfinished():
            start, response = past.starts[unfinished.trajectory], unfinished.response
            self._requests.drafts[unfinished.trajectory] = Draft(
                attempt=start.attempt, start=start, tokens=list(response.tokens)
            )
        gone = [
            told.InstanceLost(at=self.now, instance=instance.id, reason="the run was resumed")
            for instance in self._plane.fleet
        ]
        self._act(News(inputs=[*gone]))
        if self._plane.is_done and self._journal.covered_step < self._setup.recipe.steps:
            self.training.write_checkpoint()
        for whole in self._journal.unscored():
            key = whole.key
            self.scoring.ask(whole.trajectory, whole.group, key.row, key.attempt, whole.response.tokens)

    def _heed_interrupts(self) -> None:
        """Leave when somebody wants it, or when no prompts are left to go on with."""
        self.interrupts.drain()
        if (self.interrupts.count or self._plane.is_stranded) and not self._is_leaving:
            self._is_leaving = True
            self.training.is_open = False
            if self._is_worth_a_checkpoint:
                self.training.write_checkpoint()
            else:
                self.training.forgo_checkpoint()

    @property
    def _is_worth_a_checkpoint(self) -> bool:
        has_news = self._plane.is_training or self._plane.window.newest > self._journal.covered_step
        return has_news and self.training.abandon_part()

    def _is_over(self) -> bool:
        if self.interrupts.count > 1:
            return True
        if self._is_leaving:
            return not self.training.is_checkpoint_due
        is_written = self._plane.is_done and not self.training.is_checkpoint_due
        return is_written and not self.evaluating.num_missing

    def _check_progress(self) -> None:
        """A stuck run is an error, not a hang."""
        w = self._plane.window
        progress = (w.taken, w.newest, w.num_active, w.num_finished, self.evaluating.num_missing)
        if progress != self._progress or self._plane.is_training:
            self._progress, self._progress_at = progress, time.monotonic()
        quiet_s = time.monotonic() - self._progress_at
        if quiet_s > self._setup.recipe.patience.progress_s and self._plane.lacks_prompts:
            raise DoraError(
                f"the source of prompts had nothing to offer for {quiet_s:.0f} s",
                hint="let it choose rows, or let it choose None once there are no more",
            )
        if quiet_s > self._setup.recipe.patience.progress_s:
            raise DoraError(
                f"nothing has ended for {quiet_s:.0f} s: {w}", hint="look into the logs of the run"
            )

    def stop(self) -> None:
        """Let every worker end in order; a second interrupt, or one that takes too long, ends that."""
        handles = [*(post.handle for post in self._instances.posts.values()), self.training.handle]
        for handle in handles:
            handle.send(say.Stop())
        until = time.monotonic() + self._setup.recipe.patience.stop_s
        while self.interrupts.count < 2 and time.monotonic() < until:
            left = [handle for handle in handles if handle.is_alive]
            if not left:
                break
            wait_for([*left], [], 0.1)
            for handle in left:
                handle.receive()
