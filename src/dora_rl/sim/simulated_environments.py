"""The environments of a simulated run: resets, turns that take their time, failures, ends.

Where a run has episodes, environments are reset when control says so and every turn, the last one too, ends
in a wait for one; otherwise a response is only interrupted by its turns. Latencies are drawn by what a
trajectory is, not by when it starts, so that schedules are compared on the same draws.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.sim.futures import Future, Futures
from dora_rl.sim.simulated_engine import SimulatedEngine, SimulatedRequest
from dora_rl.sim.truth import Truth


class Clock(Protocol):
    """Virtual time: what is said now, and what happens later."""

    now: float

    def tell(self, event: Input) -> None: ...

    def after(self, seconds: float, act: Callable[[Any], None], argument: Any = None) -> None: ...


class SimulatedEnvironments:
    """Resets environments, answers turns after their latency, and ends episodes."""

    def __init__(
        self,
        recipe: Recipe,
        clock: Clock,
        futures: Futures,
        truth: Truth,
        prompt_tokens: Callable[[int], int],
        score: Callable[[int], None],
    ) -> None:
        """`prompt_tokens` of a row; `score` has the reward of a trajectory told that ended."""
        self.is_episodic = recipe.episode is not None
        self._appended = recipe.task.turns.environment_tokens
        self._has_role = bool(recipe.task.turns.role_tokens)
        self._awaited: dict[int, tuple[int, Future]] = {}
        """Which trajectory awaits each turn of a role."""
        self._questions = 0
        self._tries = recipe.control.environment_tries
        self._group_size = recipe.batch.group_size
        self._clock = clock
        self._futures = futures
        self._truth = truth
        self._prompt_tokens = prompt_tokens
        self._score = score

    # --- resets ---

    def open(self, d: do.Open) -> None:
        """Reset the environments of a group; one that fails is reset again, so often as is tried."""
        members = range(1 if d.is_evaluation else self._group_size)
        resets = [self._truth.reset(d.epoch, d.row, member, tries=self._tries) for member in members]
        seconds = max(seconds for seconds, _ in resets)
        is_reset = all(is_reset for _, is_reset in resets)
        self._clock.after(seconds, self._opened if is_reset else self._gave_up, d)

    def _opened(self, d: do.Open) -> None:
        tokens = self._prompt_tokens(d.row)
        self._clock.tell(
            told.Opened(
                at=self._clock.now,
                epoch=d.epoch,
                row=d.row,
                tokens=tokens,
                is_evaluation=d.is_evaluation,
            )
        )

    def _gave_up(self, d: do.Open) -> None:
        reason = "simulated failure"
        self._clock.tell(
            told.OpenFailed(
                at=self._clock.now,
                epoch=d.epoch,
                row=d.row,
                reason=reason,
                is_evaluation=d.is_evaluation,
            )
        )

    def reopen(self, d: do.Reopen) -> None:
        """Reset the environment of a trajectory for its next attempt."""
        future = self._futures[d.trajectory]
        future.attempt, future.is_over = -1, True  # Drawn anew when it starts.
        seconds, _ = self._truth.reset(*future.key, d.attempt, tries=self._tries)
        self._clock.after(seconds, self._begin_again, (d.trajectory, future))

    def _begin_again(self, argument: tuple[int, Future]) -> None:
        key, future = argument
        if self._futures.get(key) is future:
            self._clock.tell(
                told.EnvironmentReplied(
                    at=self._clock.now, trajectory=key, tokens=0, context=future.prompt_tokens
                )
            )

    # --- turns ---

    def ask(self, engine: SimulatedEngine, request: SimulatedRequest, future: Future) -> None:
        """Give the turn to a trajectory's environment, which replies, returns or fails."""
        key, turn, is_last = request.trajectory, future.turn, not future.has_more_turns
        future.turn += not is_last
        future.journalled = int(request.until)
        self._clock.tell(
            told.TurnEnded(
                at=self._clock.now,
                instance=engine.id,
                trajectory=key,
                tokens=int(request.until),
                clock=engine.clock,
                kv_tokens=engine.claimed_kv,
            )
        )
        fails = self._truth.environment_fails(future.key, turn, future.attempt)
        reply = self._ask_role if self._has_role else self._reply
        answer = self._fail if fails else self._return if is_last else reply
        self._clock.after(self._truth.latency_s(future.key, turn), answer, (key, future))

    def _ask_role(self, argument: tuple[int, Future]) -> None:
        """Have a role speak, with all of the conversation before it, so that the environment can reply."""
        key, future = argument
        if not self._is_current(key, future):
            return
        question, self._questions = self._questions, self._questions + 1
        self._awaited[question] = argument
        self._futures.role_asked(question, self._truth.role_tokens(future.key, future.turn))
        tokens = future.prompt_tokens + future.journalled
        self._clock.tell(
            told.RoleTurnAsked(
                at=self._clock.now, question=question, version=0, tokens=tokens, trajectory=key
            )
        )

    def role_said(self, question: int) -> None:
        """Let the environment reply with what its role said."""
        awaited = self._awaited.pop(question, None)
        if awaited is not None:
            self._futures.role_over(question)
            self._reply(awaited)

    def let_go(self, trajectories: Iterable[int]) -> None:
        """Await no roles for trajectories that are over."""
        over = set(trajectories)
        for question in [number for number, (key, _) in self._awaited.items() if key in over]:
            del self._awaited[question]
            self._clock.tell(told.RoleTurnDropped(at=self._clock.now, question=question))

    def _reply(self, argument: tuple[int, Future]) -> None:
        key, future = argument
        if self._is_current(key, future):
            future.journalled += self._appended
            future.appended += self._appended
            self._clock.tell(
                told.EnvironmentReplied(at=self._clock.now, trajectory=key, tokens=self._appended)
            )

    def _fail(self, argument: tuple[int, Future]) -> None:
        key, future = argument
        if self._is_current(key, future):
            self._clock.tell(
                told.EnvironmentFailed(at=self._clock.now, trajectory=key, reason="simulated failure")
            )

    def _is_current(self, key: int, future: Future) -> bool:
        return self._futures.get(key) is future and not future.is_over

    # --- ends ---

    def _return(self, argument: tuple[int, Future]) -> None:
        key, future = argument
        if self._is_current(key, future):
            self._end(key, future, truncated=self._truth.is_truncated(future.journalled - future.appended))

    def cut(self, d: do.Cut) -> None:
        """End an episode that control does not wait for any longer, with the tokens it has."""
        self.let_go([d.trajectory])
        self._end(d.trajectory, self._futures[d.trajectory], truncated=True)

    def _end(self, key: int, future: Future, *, truncated: bool) -> None:
        future.is_over = True
        future.total_tokens = future.journalled + future.prompt_tokens
        if future.is_evaluation:
            self._futures.forget([key])  # Nobody will train on it.
        self._clock.tell(
            told.EpisodeEnded(
                at=self._clock.now,
                trajectory=key,
                tokens=future.journalled - future.appended,
                truncated=truncated,
            )
        )
        self._score(key)
