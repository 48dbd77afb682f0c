"""An executor whose environments ask roles, played by version 0, before they answer.

Nobody awaits a role's turn whose episode is over, cut, closed or in another attempt: that is said to control,
late like everything. What a role has said so far outlives its instance, and its turn ends once.
"""

from collections import Counter
from random import Random

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input

from .episode_executor import EpisodeExecutor, LiveEpisode
from .fake_executor import Episode, Machine, Request

FROZEN = 0


class RoleRequest(Request):
    """The one turn of a role."""

    __slots__ = ("last",)

    def __init__(self, start: do.Start, last: int) -> None:
        self.trajectory = start.trajectory
        self.version = start.version
        self.prompt_tokens = start.prompt_tokens
        self.last = last
        self.tokens = min(start.generated_tokens, last - 1)
        self.is_waiting = self.is_resting = False

    @property
    def until(self) -> int:
        return self.last


class RoleExecutor(EpisodeExecutor):
    """Plays episodes that wait for the turns of roles, and follows every turn to its end."""

    def __init__(self, rng: Random, *, group_size: int, max_tokens: int, max_open: int | None) -> None:
        super().__init__(rng, group_size=group_size, max_tokens=max_tokens, max_open=max_open)
        self._role_rng = Random(f"roles {rng.random()}")
        self.awaited: dict[int, tuple[int, LiveEpisode, int]] = {}
        """By question, which episode awaits the turn of a role, and in which turn of its own."""
        self.question_of: dict[int, int] = {}
        """The question of each trajectory that is a role's turn."""
        self.num_said: Counter[str] = Counter()
        self._last: dict[int, int] = {}
        self._asked = 0

    # --- asking ---

    def _answer(self, key: int, episode: Episode, turn: int) -> None:
        assert isinstance(episode, LiveEpisode)
        if self._role_rng.random() < 0.5:
            super()._answer(key, episode, turn)
            return
        question, tokens = self._asked, self._role_rng.randint(1, 20)
        self._asked += 1

        def asked(at: float) -> Input | None:
            if not self._is_current(key, episode):
                return None
            self.awaited[question] = (key, episode, turn)
            self._last[question] = self._role_rng.randint(1, 12)
            return told.RoleTurnAsked(at=at, question=question, version=FROZEN, tokens=tokens, trajectory=key)

        self.say("environments", asked)

    def _is_current(self, key: int, episode: Episode) -> bool:
        assert isinstance(episode, LiveEpisode)
        is_live = self._episodes.get(key) is episode and key not in self.closed
        return is_live and not (episode.is_over or episode.is_cut)

    def carry_out(self, decision: Decision) -> None:
        super().carry_out(decision)
        for question, (key, episode, _) in list(self.awaited.items()):
            if not self._is_current(key, episode):
                self.drop(question)

    def drop(self, question: int) -> None:
        """Await the turn of a role no longer."""
        del self.awaited[question]
        self.num_said["dropped"] += 1
        self.say("environments", lambda at: told.RoleTurnDropped(at=at, question=question))

    # --- generating ---

    def _start(self, d: do.Start) -> None:
        if d.question is None:
            super()._start(d)
            return
        key = d.trajectory
        assert d.version == FROZEN, f"{d} is not what plays the role"
        assert not d.evaluation, f"{d} is no evaluation"
        assert self.question_of.setdefault(key, d.question) == d.question, f"{d} was another one's"
        assert key not in self._episodes, f"{d} is an episode"
        assert key not in self._transit, f"{key} is on its way"
        for machine in self.machines.values():
            assert key not in machine.requests, f"{key} runs already on {machine.key}"
        self._check_exists(d.version)
        self._failing.discard(key)
        self._placed[key] = d.instance
        machine = self._heard(d.instance)
        if machine is not None:
            assert d.version in machine.versions, f"{d} but resident are {machine.versions}"
            assert not machine.is_lent, f"{d} but its devices train"
            machine.requests[key] = RoleRequest(d, self._last.get(d.question, 5))
            self._check_decoding(machine)

    def _turn_over(self, machine: Machine, request: Request) -> None:
        if not isinstance(request, RoleRequest):
            super()._turn_over(machine, request)
            return
        key, tokens, clock = request.trajectory, request.tokens, machine.clock
        aborts, question = self._aborts[key], self.question_of[key]
        del machine.requests[key]
        kv = machine.kv

        def ended(at: float) -> Input | None:
            if self._aborts[key] > aborts:
                return None
            waiting = self.awaited.pop(question, None)
            if waiting is not None:
                self.num_said["said"] += 1
                self._soon(lambda: EpisodeExecutor._answer(self, *waiting))
            return told.Ended(
                at=at, instance=machine.key, trajectory=key, tokens=tokens, clock=clock, kv_tokens=kv
            )

        self.say(machine.key, ended)

    def _journal(self, request: Request) -> None:
        if not isinstance(request, RoleRequest):
            super()._journal(request)

    def _retire(self, d: do.Retire) -> None:
        assert d.version != FROZEN, f"{d} plays a role"
        super()._retire(d)
