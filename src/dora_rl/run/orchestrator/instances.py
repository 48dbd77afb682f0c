"""The processes of the instances: started, listened to, told, ended, started again.

An instance joins once its first version, the newest there was, is resident; before that control does not know
it, and what control says to one that is not there (any more) is not sent. Knows nothing of requests.
"""

import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct

from dora_rl.core.fleet import InstanceSpec
from dora_rl.launch.protocol import Handle, Launch, Place, WorkerSpec
from dora_rl.run import messages as say
from dora_rl.run.layout import LiveLayout
from dora_rl.run.orchestrator.deaths import Deaths, end_if_final, how_it_ended
from dora_rl.run.setup import RunSetup


class Phase(Enum):
    STARTING = "to open its engine"
    LOADING = "to load its first version"
    JOINED = "nothing"


class Post(Struct, kw_only=True):
    """One instance's process."""

    number: int
    handle: Handle
    since: float
    """When its phase began."""
    heard_at: float
    phase: Phase = Phase.STARTING
    spec: InstanceSpec | None = None
    report: say.Report | None = None
    """Its last."""
    last_words: str | None = None

    @property
    def name(self) -> str:
        return f"instance {self.number}"

    def enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()


class Lost(Struct, kw_only=True):
    """A process that is gone."""

    number: int
    was_joined: bool
    reason: str


class Instances:
    """All of them, by number."""

    def __init__(
        self,
        setup: RunSetup,
        layout: LiveLayout,
        deaths: Deaths,
        stop_tokens: tuple[int, ...],
        *,
        launch: Launch,
    ) -> None:
        self._setup = setup
        self._stop_tokens = stop_tokens
        self._layout = layout
        self._deaths = deaths
        self._launch = launch
        self.posts: dict[int, Post] = {}
        for number in range(setup.devices.instances):
            self._start(number)

    def _start(self, number: int) -> None:
        devices = self._setup.devices
        worker = WorkerSpec(
            name=f"instance {number}",
            module="dora_rl.run.workers.instance",
            log=str(self._log(number)),
            place=Place.on(devices.instance_home(number), cpus=devices.instance_threads),
        )
        handle = self._launch.start(worker, say.InstanceWord)
        handle.send(
            say.Begin(
                setup=self._setup,
                store=str(self._layout.versions),
                number=number,
                stop_tokens=self._stop_tokens,
            )
        )
        now = time.monotonic()
        self.posts[number] = Post(number=number, handle=handle, since=now, heard_at=now)

    def close(self) -> None:
        """End what is left, at once."""
        for post in self.posts.values():
            post.handle.end(within_s=0.0)

    # --- talking --------------------------------------------------------------------------------

    def send(self, number: int, message: say.Message) -> None:
        """Tell an instance that has joined; anyone else is told nothing."""
        post = self.posts[number]
        if post.phase is Phase.JOINED:
            post.handle.send(message)

    def has_joined(self, number: int) -> bool:
        return self.posts[number].phase is Phase.JOINED

    def words(self) -> Iterator[tuple[Post, Any]]:
        """What they said, in each one's order."""
        for post in self.posts.values():
            for word in post.handle.receive():
                post.heard_at = time.monotonic()
                if isinstance(word, say.Broken):
                    end_if_final(word)
                    post.last_words = word.message
                else:
                    yield post, word

    def serve(self, post: Post, version: int) -> None:
        """Its engine is open: let it load its first version."""
        post.enter(Phase.LOADING)
        post.handle.send(say.LoadVersion(version=version))

    # --- deaths ---------------------------------------------------------------------------------

    def lost(self) -> list[Lost]:
        """Those that died or took too long to start; each is started again."""
        troubled = [(post, self._trouble(post)) for post in self.posts.values()]
        return [self._replace(post, reason) for post, reason in troubled if reason is not None]

    def restart(self, number: int, reason: str) -> None:
        """Control gave it up."""
        self._replace(self.posts[number], reason)

    def _trouble(self, post: Post) -> str | None:
        """Why it has to be started again; of one that has joined, silence is judged by control."""
        if not post.handle.is_alive:
            return how_it_ended(post.handle.end(within_s=1.0), post.last_words, self._log(post.number))
        if post.phase is Phase.JOINED:
            return None
        now, start_s = time.monotonic(), self._setup.recipe.patience.start_s
        silence_s = self._setup.recipe.control.silence_s
        if now - post.since > start_s:
            return f"took more than {start_s:g} s {post.phase.value}"
        return f"was silent for {silence_s:g} s" if now - post.heard_at > silence_s else None

    def _replace(self, post: Post, reason: str) -> Lost:
        post.handle.end(within_s=0.0)
        self._deaths.count(post.name, reason, self._log(post.number))
        self._start(post.number)
        return Lost(number=post.number, was_joined=post.phase is Phase.JOINED, reason=reason)

    def _log(self, number: int) -> Path:
        return self._layout.logs / f"instance_{number}.log"
