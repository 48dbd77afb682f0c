"""Effects and decisions become commands, in their order: the sibling of the simulator's world.

Called once the inputs behind them are durable. What is decided about an instance that died meanwhile is not
sent: control hears of the death and decides again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dora_rl.core import decisions as do
from dora_rl.core.decisions import Decision
from dora_rl.core.errors import DoraError
from dora_rl.run import messages as say
from dora_rl.run import received as follow
from dora_rl.run.episodes.host import EpisodeHost
from dora_rl.run.generation import Generation
from dora_rl.run.instance_inbox import InstanceInbox
from dora_rl.run.instances import InstancePool
from dora_rl.run.prompt_table import RunPrompts
from dora_rl.run.received import AnyEffect
from dora_rl.run.request_table import RequestMoves, RequestTable
from dora_rl.run.rewards.queue import RewardQueue
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.trainer_process import TrainerProcess
from dora_rl.store.journal import Journal

RECORDS_ONLY = (do.Admit, do.Wait, do.Skip, do.Finish)
"""Decisions that ask nothing of anyone: an admission is followed by its Starts, a wait or a skip is for the
meters and the log, and the loop sees by itself that control is done."""


class UnknownDecision(DoraError):
    """Control decided what a live run cannot carry out."""


class DecisionExecutor:
    """Carries out what follows from messages, and what control decided about them."""

    def __init__(
        self,
        setup: RunSetup,
        prompts: RunPrompts,
        journal: Journal,
        *,
        inbox: InstanceInbox,
        instances: InstancePool,
        requests: RequestTable,
        moves: RequestMoves,
        trainer: TrainerProcess,
        rewards: RewardQueue | None,
        episodes: EpisodeHost | None,
    ) -> None:
        """Members are judged by `rewards`, or are `episodes`, which judge themselves."""
        self._journal = journal
        self._instances = instances
        self._requests = requests
        self._moves = moves
        self._rewards = rewards
        self._episodes = episodes
        generation = Generation(setup, prompts, requests, instances.send, episodes)
        self._effects: dict[type[follow.Effect], Callable[[Any], None]] = {
            follow.ContinueRequest: lambda e: generation.generate(e.trajectory, e.request),
            follow.DeliverKv: self._deliver,
            follow.ServeStore: lambda e: inbox.serve_store(),
            follow.RecordStep: trainer.step_recorded,
            follow.CoverBatches: self._cover,
        }
        self._decisions: dict[type[Decision], Callable[[Any], None]] = {
            do.Start: generation.start,
            do.Move: moves.begin,
            do.Abort: self._take_off,
            do.Interrupt: lambda d: instances.send(d.instance, say.InterruptAll(version=d.version)),
            do.Load: lambda d: instances.send(d.instance, say.LoadVersion(version=d.version, drop=d.drop)),
            do.Drop: lambda d: instances.send(d.instance, say.DropVersion(version=d.version)),
            do.Lend: lambda d: instances.send(d.instance, say.LendDevice()),
            do.Return: lambda d: instances.send(d.instance, say.ReturnDevice()),
            do.Restart: self._restart,
            do.Hand: trainer.hand,
            do.Take: trainer.take,
            do.Close: self._close,
            do.Retire: lambda d: trainer.retire(d.version),
        }
        if rewards is not None:
            self._effects[follow.ScoreTrajectory] = rewards.ask
        if episodes is not None:
            self._effects[follow.AnswerOperation] = episodes.answer
            self._effects[follow.AnswerRole] = episodes.answer_role
            self._decisions |= {
                do.Open: episodes.open,
                do.Reopen: episodes.reopen,
                do.Cut: episodes.cut,
                do.Resume: generation.resume,
                do.Evict: self._take_off,
                do.Park: self._park,
            }

    def carry_out(self, effects: Sequence[AnyEffect], decisions: Sequence[Decision]) -> None:
        """Carry out all effects in order, then all decisions in order."""
        for effect in effects:
            self._effects[type(effect)](effect)
        for decision in decisions:
            command = self._decisions.get(type(decision))
            if command is not None:
                command(decision)
            elif not isinstance(decision, RECORDS_ONLY):
                raise UnknownDecision(f"a live run cannot carry out {decision}", hint="this is a defect")

    # --- requests -------------------------------------------------------------------------------

    def _take_off(self, decision: do.Abort | do.Evict) -> None:
        """Abort a trajectory's request, at both ends of its move if it is on one: either may hold it."""
        placed = self._requests.of(decision.trajectory)
        if placed is not None and placed.instance == decision.instance:
            self._moves.forget_request(decision.trajectory)
            self._instances.send(decision.instance, say.AbortRequest(request=placed.number))
        partial = self._requests.partial.get(decision.trajectory)
        role_turn = partial.role_turn if partial is not None else None
        if role_turn is not None and self._episodes is not None and not self._episodes.awaits_role(role_turn):
            del self._requests.partial[decision.trajectory]

    def _park(self, decision: do.Park) -> None:
        """Have KV of a request between turns taken to host memory, unless it left or went on meanwhile."""
        placed = self._requests.of(decision.trajectory)
        if placed is not None and placed.instance == decision.instance and placed.is_held:
            self._instances.send(decision.instance, say.ParkRequest(request=placed.number))

    def _deliver(self, effect: follow.DeliverKv) -> None:
        # Its target may have died in the same turn.
        if self._requests.find(effect.request, effect.instance) is not None:
            command = say.ImportRequest(request=effect.request, path=effect.path)
            self._instances.send(effect.instance, command)

    def _restart(self, restart: do.Restart) -> None:
        self._moves.forget_instance(restart.instance)
        if self._instances.has_joined(restart.instance):
            self._instances.restart(restart.instance, restart.reason)

    # --- trajectories and batches ---------------------------------------------------------------

    def _close(self, close: do.Close) -> None:
        for trajectory in close.members:
            self._requests.partial.pop(trajectory, None)
            if self._rewards is not None:
                self._rewards.look_at(trajectory, close.group)
            if self._episodes is not None:
                self._episodes.forget(trajectory)

    def _cover(self, effect: follow.CoverBatches) -> None:
        self._journal.covered(effect.version, oldest=effect.oldest)
        self._journal.prune()
