"""An executor whose trajectories are episodes: environments open, reply, fail, hang and end.

An environment is reset for every member before a group exists, has the turn after each stretch of the
policy's, and may go on in another branch. What control may rely on: a word about an episode that is over
does not come, except one that was under way when the episode was cut.
"""

from random import Random

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.inputs import Input

from .fake_executor import ENV_TOKENS, Episode, Executor, Machine, Request

Row = tuple[int, int]


class LiveEpisode(Episode):
    """One attempt at an episode: its turns, and the branch that the present one belongs to."""

    def __init__(self, attempt: int, turns: list[int], context: int | None) -> None:
        super().__init__(attempt, turns)
        self.turn = 0
        self.context = context
        """Tokens before the present turn, in its branch; None until a new attempt asks for its first turn."""
        self.drawn = 0
        """Tokens of the present turn that outlive an instance."""
        self.has_turn = False
        """Whether the policy has the turn, and not the environment."""
        self.is_over = False
        self.is_cut = False

    @property
    def length(self) -> int:
        return self.ends[self.turn]


class EpisodeRequest(Request):
    """A request of one turn."""

    __slots__ = ("last",)

    def __init__(self, start: do.Start, episode: LiveEpisode) -> None:
        assert episode.context is not None
        self.trajectory = start.trajectory
        self.version = start.version
        self.prompt_tokens = start.prompt_tokens
        self.is_waiting = self.is_resting = False
        self.last = episode.context + episode.length - start.prompt_tokens
        known = start.prompt_tokens + start.generated_tokens - episode.context
        self.tokens = min(self.last - 1, episode.context - start.prompt_tokens + min(known, episode.drawn))

    @property
    def until(self) -> int:
        return self.last

    def go_on(self) -> None:
        """Where the next turn ends is the executor's to say."""


class EpisodeExecutor(Executor):
    """Opens environments, plays episodes of several turns and branches, and ends those that are cut."""

    def __init__(self, rng: Random, *, group_size: int, max_tokens: int, max_open: int | None) -> None:
        super().__init__(rng, group_size=group_size, max_tokens=max_tokens, mean_turns=2.0)
        self._max_open = max_open
        self.opening_failure_rate = 0.0
        self.hang_rate = 0.0
        self.branch_rate = 0.25
        self.ahead: dict[Row, int | None] = {}
        """Tokens of the first contexts of what is opened and not admitted; None while it is being reset."""
        self._evaluations_ahead: list[tuple[Row, int | None]] = []
        self.num_cut = 0
        self._placed: dict[int, int] = {}
        """The instance that each trajectory was last sent to."""
        self._act |= {do.Open: self._open, do.Reopen: self._reopen, do.Cut: self._cut}

    # --- opening ---

    def num_open(self) -> int:
        live = sum(not self._of(key).is_over and key not in self.closed for key in self._episodes)
        return self._group_size * len(self.ahead) + len(self._evaluations_ahead) + live

    def _open(self, d: do.Open) -> None:
        row = (d.epoch, d.row)
        if d.is_evaluation:
            self._evaluations_ahead.append((row, None))
        else:
            assert row not in self.ahead, f"{d} twice"
            self.ahead[row] = None
        assert self._max_open is None or self.num_open() <= self._max_open, f"{d}: {self.num_open()} are open"
        self._soon(lambda: self._opened(d, row))

    def _opened(self, d: do.Open, row: Row) -> None:
        fails = self._rng.random() < self.opening_failure_rate
        # The same evaluation may be asked for twice: it begins alike, whichever of the two it is.
        tokens = 5 if d.is_evaluation else self._rng.randint(1, 9)

        def told_of(at: float) -> Input:
            if d.is_evaluation:
                self._evaluations_ahead.remove((row, None))
                self._evaluations_ahead += [] if fails else [(row, tokens)]
            elif fails:
                del self.ahead[row]
            else:
                self.ahead[row] = tokens
            kind = {"epoch": d.epoch, "row": d.row, "is_evaluation": d.is_evaluation}
            if fails:
                return told.OpenFailed(at=at, reason="no port", **kind)
            return told.Opened(at=at, tokens=tokens, **kind)

        self.say("environments", told_of)

    def _admit(self, d: do.Admit) -> None:
        super()._admit(d)
        tokens = self.ahead.pop((d.epoch, d.row), None)
        assert tokens is not None, f"{d}, and its environments are not reset"
        for key in self._members(d.group):
            self._begin(key, 0, tokens)

    def _begin(self, key: int, attempt: int, context: int | None) -> LiveEpisode:
        most = max(1, (self._max_tokens - 2 * ENV_TOKENS) // 3)
        turns = [max(1, int(most * self._rng.random() ** 2)) for _ in range(self._rng.randint(1, 3))]
        episode = self._episodes[key] = LiveEpisode(attempt, turns, context)
        episode.has_turn = context is not None
        return episode

    def _reopen(self, d: do.Reopen) -> None:
        before = self._of(d.trajectory)
        assert d.attempt == before.attempt + 1, d
        assert not before.is_over, f"{d} of an episode that is over"
        assert d.trajectory not in self.closed, f"{d} was closed"
        episode = self._begin(d.trajectory, d.attempt, None)
        self._soon(lambda: self._answer(d.trajectory, episode, 0))

    def _of(self, key: int) -> LiveEpisode:
        episode = self._episodes[key]
        assert isinstance(episode, LiveEpisode)
        return episode

    # --- turns ---

    def _start(self, d: do.Start) -> None:
        key = d.trajectory
        if d.evaluation and key not in self._episodes:
            opened = [each for each in self._evaluations_ahead if each[0] == (d.epoch, d.row) and each[1]]
            assert opened, f"{d}, and its environment is not reset"
            self._evaluations_ahead.remove(opened[0])
            self._begin(key, 0, opened[0][1])
            self.evaluations[key] = d.version
        pinned = self.evaluations.get(key) if d.evaluation else self.version_of.get(d.group)
        assert self.mixes_versions or pinned == d.version, f"{d} is pinned to {pinned}"
        self._check_exists(d.version)
        assert key not in self.closed, f"{key} was closed"
        assert key not in self._transit, f"{key} is on its way"
        for machine in self.machines.values():
            assert key not in machine.requests, f"{key} runs already on {machine.key}"
        self._failing.discard(key)
        self._placed[key] = d.instance
        episode = self._of(key)
        assert d.attempt == episode.attempt, f"{d} of an attempt that has no environment"
        assert episode.is_over or episode.has_turn, f"{d} while its environment has the turn"
        assert episode.context is not None
        assert d.prompt_tokens + d.generated_tokens >= episode.context, f"{d} forgets its context"
        machine = self._heard(d.instance)
        if machine is not None and not episode.is_over:
            assert d.version in machine.versions, f"{d} but resident are {machine.versions}"
            assert not machine.is_lent, f"{d} but its devices train"
            assert not machine.is_interrupted, f"{d} but it changes its weights"
            machine.requests[key] = EpisodeRequest(d, episode)
            self._check_decoding(machine)

    def _check_slots(self, machine: Machine) -> None:
        """Those that come back to their KV may be more than there are slots: moves are not judged by it."""

    def _check_decoding(self, machine: Machine) -> None:
        """A waiting episode takes no slot: only what decodes, or comes to decode, counts."""
        coming = sum(move.target == machine.key and not r.is_waiting for move, r in self._transit.values())
        decoding = sum(not request.is_waiting for request in machine.requests.values())
        if self.checks_slots:
            assert decoding + coming <= machine.spec.slots, f"{machine.key} is overbooked"

    def _turn_over(self, machine: Machine, request: Request) -> None:
        key, tokens, clock = request.trajectory, request.tokens, machine.clock
        episode, aborts, turn = self._of(key), self._aborts[key], self._of(key).turn
        request.is_waiting = True
        episode.drawn = episode.length
        kv = machine.kv

        def turn_ended(at: float) -> Input | None:
            if self._aborts[key] > aborts:
                return None
            if self._episodes.get(key) is episode and episode.has_turn and episode.turn == turn:
                episode.has_turn = False
                self._soon(lambda: self._answer(key, episode, turn))
            return told.TurnEnded(at=at, instance=machine.key, trajectory=key, tokens=tokens, clock=clock,
                                  kv_tokens=kv)  # fmt: skip

        self.say(machine.key, turn_ended)

    def _answer(self, key: int, episode: Episode, turn: int) -> None:
        """An environment asks for the next turn, in this branch or another, or returns, fails or hangs."""
        assert isinstance(episode, LiveEpisode)
        draw, branches = self._rng.random(), self._rng.random() < self.branch_rate
        context = self._rng.randint(1, max(1, self._max_tokens // 3))
        # Nobody's deadline depends on an evaluation: the limit of a call ends its waits, which are not cut.
        if draw < self.hang_rate and key not in self.evaluations:
            return
        fails = draw < self.hang_rate + self.environment_failure_rate

        def answered(at: float) -> Input | None:
            if self._episodes.get(key) is not episode or episode.is_over or key in self.closed:
                return None
            if fails:
                return told.EnvironmentFailed(at=at, trajectory=key, reason="failed")
            if episode.context is None:  # A new attempt begins.
                episode.context, episode.has_turn = context, True
                return told.EnvironmentReplied(at=at, trajectory=key, tokens=0, context=context)
            if turn + 1 == len(episode.ends):
                return self._end(key, episode, at, truncated=False)
            episode.turn, episode.has_turn = turn + 1, True
            episode.context += episode.drawn + ENV_TOKENS
            episode.drawn = 0
            if branches:
                episode.context = context
                return told.EnvironmentReplied(at=at, trajectory=key, tokens=0, context=context)
            return told.EnvironmentReplied(at=at, trajectory=key, tokens=ENV_TOKENS)

        self.say("environments", answered)

    def _end(self, key: int, episode: LiveEpisode, at: float, *, truncated: bool) -> Input:
        episode.is_over = True
        self._soon(lambda: self._score(key, episode))
        return told.EpisodeEnded(at=at, trajectory=key, tokens=episode.drawn, truncated=truncated)

    def _cut(self, d: do.Cut) -> None:
        key = d.trajectory
        episode = self._of(key)
        assert key not in self.closed, f"{d} of one that is closed"
        assert not episode.is_over, f"{d} of an episode that is over"
        assert key not in self.evaluations, f"{d} of an evaluation"
        assert not episode.is_cut, f"{d} twice"
        episode.is_cut = True
        self.num_cut += 1
        # What it said before is under way and comes first; whoever is asked now is not.
        self.say("environments", lambda at: (
            None if episode.is_over or key in self.closed else self._end(key, episode, at, truncated=True)
        ))  # fmt: skip

    def fail_environment(self, trajectory: int) -> None:
        episode = self._of(trajectory)

        def failed(at: float) -> Input | None:
            is_current = self._episodes.get(trajectory) is episode and not episode.is_over
            return (
                told.EnvironmentFailed(at=at, trajectory=trajectory, reason="broke") if is_current else None
            )

        self.say("environments", failed)

    def _move(self, d: do.Move) -> None:
        self._placed[d.trajectory] = d.target
        super()._move(d)

    def _restart(self, d: do.Restart) -> None:
        """Whatever the instance had to say of its requests is not listened to any more."""
        self._aborts.update(key for key, instance in self._placed.items() if instance == d.instance)
        super()._restart(d)

    def _resume(self, d: do.Resume) -> None:
        super()._resume(d)
        moving, machine = self._transit.get(d.trajectory), self._heard(d.instance)
        request = moving[1] if moving else machine.requests.get(d.trajectory) if machine else None
        if isinstance(request, EpisodeRequest):
            request.last = request.tokens + self._of(d.trajectory).length

    def _evict(self, d: do.Evict) -> None:
        machine = self._heard(d.instance)
        request = machine.requests.pop(d.trajectory, None) if machine else None
        assert request is None or request.is_waiting, f"{d} but it decodes"

    def _journal(self, request: Request) -> None:
        episode = self._of(request.trajectory)
        if episode.has_turn and not request.is_waiting:
            assert isinstance(request, EpisodeRequest)
            drawn = episode.length - (request.last - request.tokens)
            episode.drawn = max(episode.drawn, drawn - self._rng.randint(0, 3), 0)
