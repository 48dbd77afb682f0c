"""The processes that episodes run in: episodes begun, told, heard; processes replaced.

Every episode that was begun comes back exactly once, unless it was ended: as EpisodeDone, as EpisodeBroken,
or as EpisodeLost, to be begun again under another number. Waits for nothing but in `close`; an event loop
watches `handles`, and calls `words` at least every few seconds.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from dora_rl.core.record import Record
from dora_rl.envs.episodes.episode_messages import (
    BeginEpisode,
    EndEpisode,
    EpisodeBroken,
    EpisodeDone,
    EpisodeReply,
    EpisodeStuck,
    OnceAsked,
    OnceDone,
    OnceRecorded,
    OnceRun,
    OpenWorker,
    RoleAsked,
    RoleSaid,
    TurnAsked,
    TurnTaken,
    WorkerReady,
)
from dora_rl.launch.messages import Alive, Broken, Stop
from dora_rl.launch.protocol import Handle, Launch, Place, WorkerSpec
from dora_rl.run.episodes.episode_process import AttemptKey, BegunEpisode, EpisodeProcess, attempt_of
from dora_rl.run.worker_deaths import WorkerDeaths, end_if_final, how_it_ended

_MAX_DEATHS = 1
"""Processes that may die under an attempt's code before that is taken for the code's fault."""
_CLEAN_UP_S = 2.0
"""Seconds that processes have at the end of a run to cancel what is left of their episodes."""


class EpisodeLost(Record, frozen=True):
    """An episode is gone with its process and must be begun again, under another number."""

    episode: int
    reason: str


EpisodeWord = TurnAsked | OnceAsked | OnceDone | RoleAsked | EpisodeDone | EpisodeBroken | EpisodeLost
"""What the pool gives out: what episodes say, and which of them were lost."""


class EpisodePool:
    """The processes of a run that episodes run in."""

    def __init__(
        self,
        opening: OpenWorker,
        *,
        processes: int,
        per_process: int | None = None,
        launch: Launch,
        deaths: WorkerDeaths,
        log: Callable[[int], Path],
        start_s: float,
        silence_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`opening` is what each process is told first, `log` the file of each by number.

        A process has at most `per_process` episodes. It has `start_s` seconds to be ready, and is given up
        after `silence_s` without a sign of life.
        """
        self._opening = opening
        self._num_processes = processes
        self._per_process = per_process
        self._launch = launch
        self._deaths = deaths
        self._log = log
        self._start_s = start_s
        self._silence_s = silence_s
        self._clock = clock
        self._processes: list[EpisodeProcess] = []
        self._start_at: dict[int, float] = {}
        """When each number without a process is started again."""
        self._where: dict[int, EpisodeProcess] = {}
        """Which process has an episode, by the episode's number."""
        self._queue: deque[BeginEpisode] = deque()
        """Episodes that no process has room for."""
        self._deaths_of: Counter[AttemptKey] = Counter()
        """Processes that died while an attempt's code ran in them, by attempt."""
        for number in range(processes):
            self._start(number)

    @property
    def handles(self) -> list[Handle]:
        """The processes to wait for."""
        return [process.handle for process in self._processes]

    @property
    def is_ready(self) -> bool:
        """Whether at least one process has imported the episode."""
        return any(process.is_ready for process in self._processes)

    @property
    def num_open(self) -> int:
        """Episodes that were begun, and neither came back nor were ended."""
        return len(self._where) + len(self._queue)

    # --- talking --------------------------------------------------------------------------------

    def begin(self, begin: BeginEpisode) -> None:
        """Begin an episode where there is room for it: where there are fewest, in one that is ready first."""
        with_room = [process for process in self._processes if self._has_room(process)]
        if not with_room:
            self._queue.append(begin)
            return
        process = min(with_room, key=lambda each: (not each.is_ready, len(each.episodes)))
        process.episodes[begin.episode] = BegunEpisode(begin=begin)
        self._where[begin.episode] = process
        process.handle.send(begin)

    def _has_room(self, process: EpisodeProcess) -> bool:
        is_full = self._per_process is not None and len(process.episodes) >= self._per_process
        return not (process.is_leaving or is_full)

    def tell(self, message: TurnTaken | OnceRun | OnceRecorded | RoleSaid) -> None:
        """Give an episode the answer it waits for; one that is over is told nothing."""
        process = self._where.get(message.episode)
        if process is not None:
            process.episodes[message.episode].is_waiting = False
            process.handle.send(message)

    def end(self, episode: int) -> None:
        """Stop an episode: nothing more is heard of it."""
        process = self._where.get(episode)
        if process is not None:
            self._forget(process, episode)
            process.handle.send(EndEpisode(episode=episode))
        self._queue = deque(begin for begin in self._queue if begin.episode != episode)

    def words(self) -> list[EpisodeWord]:
        """Everything that episodes said since the last call, and which are lost with their process."""
        words: list[EpisodeWord] = []
        for process in list(self._processes):
            for word in process.handle.receive():
                process.heard_at = self._clock()
                words += self._heard(process, word)
        for process in list(self._processes):
            words += self._looked_after(process)
        for number in [number for number, at in self._start_at.items() if self._clock() >= at]:
            self._start(number)
        queue, self._queue = self._queue, deque()
        for begin in queue:
            self.begin(begin)
        return words

    def _heard(self, process: EpisodeProcess, word: EpisodeReply | Alive | Broken) -> list[EpisodeWord]:
        match word:
            case WorkerReady():
                process.is_ready = True
            case Broken():
                end_if_final(word)
                process.last_words = word.message
            case EpisodeStuck():
                self._leave(process, word)
            case Alive():
                pass
            case _ if word.episode not in process.episodes:
                pass  # It was ended meanwhile.
            case EpisodeDone() | EpisodeBroken():
                self._forget(process, word.episode)
                return [word]
            case TurnAsked() | OnceAsked() | OnceDone() | RoleAsked():
                process.episodes[word.episode].is_waiting = True
                return [word]
        return []

    def _forget(self, process: EpisodeProcess, episode: int) -> None:
        begun = process.episodes.pop(episode)
        del self._where[episode]
        self._deaths_of.pop(attempt_of(begun.begin), None)

    # --- processes ------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        self._start_at.pop(number, None)
        spec = WorkerSpec(
            name=f"episode worker {number}",
            module="dora_rl.run.workers.episode_worker",
            log=str(self._log(number)),
            # How many threads a user's environment takes is the user's business.
            place=Place(cpus=None),
        )
        handle = self._launch.start(spec, EpisodeReply | Alive | Broken)
        handle.send(self._opening)
        now = self._clock()
        self._processes.append(EpisodeProcess(number=number, handle=handle, since=now, heard_at=now))

    def _leave(self, process: EpisodeProcess, stuck: EpisodeStuck) -> None:
        """Have a process that code hangs in end with the episodes it has; another takes its place at once."""
        if process.is_leaving:
            return
        self._deaths.write_down(f"{process.name} has code that hangs:\n{stuck.detail.rstrip()}")
        self._deaths.note(process.name, "is replaced: the code of an episode that is over hangs in it")
        process.is_leaving = True
        self._start(process.number)

    def _looked_after(self, process: EpisodeProcess) -> list[EpisodeWord]:
        """End or replace a process if it is time; returns what became of its episodes."""
        if not process.handle.is_alive:
            ended = process.handle.end(within_s=1.0)
            return self._bury(process, how_it_ended(ended, process.last_words, self._log(process.number)))
        trouble = process.trouble(self._clock(), start_s=self._start_s, silence_s=self._silence_s)
        if trouble is not None:
            return self._bury(process, trouble)
        if process.is_leaving and not process.episodes:
            self._remove(process)
        elif process.is_leaving and self._num_leaving > self._num_processes:
            # Code hangs faster than episodes end: the others go on elsewhere.
            return self._remove(process)
        return []

    @property
    def _num_leaving(self) -> int:
        return sum(process.is_leaving for process in self._processes)

    def _remove(self, process: EpisodeProcess) -> list[EpisodeWord]:
        """Kill a process; returns its episodes as lost."""
        process.handle.end(within_s=0.0)
        self._processes.remove(process)
        for episode in process.episodes:
            del self._where[episode]
        reason = f"{process.name} was replaced"
        return [EpisodeLost(episode=episode, reason=reason) for episode in process.episodes]

    def _bury(self, process: EpisodeProcess, reason: str) -> list[EpisodeWord]:
        """Replace a process that is gone, or as good as; returns what became of its episodes."""
        self._remove(process)
        words = [self._outlived(process, begun, reason) for begun in process.episodes.values()]
        if process.is_leaving:
            self._deaths.note(process.name, reason)
            return words
        # What dies after it was ready dies of episodes, which are counted: no environment ends a run. What
        # cannot even start does, if no other can.
        is_needed = not (process.is_ready or self.is_ready)
        pause_s = self._deaths.count(process.name, reason, self._log(process.number), is_needed=is_needed)
        self._start_at[process.number] = self._clock() + pause_s
        return words

    def _outlived(self, process: EpisodeProcess, begun: BegunEpisode, reason: str) -> EpisodeWord:
        """What became of an episode whose process is gone: broken if its code is to blame, else lost."""
        episode, attempt = begun.begin.episode, attempt_of(begun.begin)
        if process.is_ready and not begun.is_waiting:
            self._deaths_of[attempt] += 1
        if self._deaths_of[attempt] <= _MAX_DEATHS:
            return EpisodeLost(episode=episode, reason=f"{process.name} {reason}")
        del self._deaths_of[attempt]
        detail = f"{process.name} {reason}; so did the one before while the code of this attempt ran in it"
        return EpisodeBroken(episode=episode, reason="process died", detail=detail)

    def close(self) -> None:
        """End every process; episodes that are left are cancelled, and may clean up for a moment."""
        for process in self._processes:
            process.handle.send(Stop())
        until = time.monotonic() + _CLEAN_UP_S
        for process in self._processes:
            process.handle.end(within_s=max(0.0, until - time.monotonic()))
        self._processes.clear()
        self._where.clear()
        self._queue.clear()
