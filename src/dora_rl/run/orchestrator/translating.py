"""What instances say becomes control's inputs and the journal's payloads.

A word about a request that the instance no longer has is dropped here, and nowhere else. What has to be done
because of a word, without a decision (the second half of a move), is returned beside them and done after both
are durable.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from dora_rl.control.plane import ControlPlane
from dora_rl.core import inputs as told
from dora_rl.core.inputs import Input
from dora_rl.engines.requests import DrawnTokens
from dora_rl.run import messages as say
from dora_rl.run.orchestrator.instances import Instances, Phase, Post
from dora_rl.run.orchestrator.moves import Moves
from dora_rl.run.orchestrator.requests import Placed, Requests
from dora_rl.store.records import AnyPayload, Completed, Progress


class News(Struct, kw_only=True):
    """What came in since the last look."""

    inputs: list[Input] = field(default_factory=list)
    payloads: list[AnyPayload] = field(default_factory=list)
    before: list[Callable[[], None]] = field(default_factory=list)
    """To be done once inputs and payloads are durable, before what was decided about them."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """To be done after that."""


class Translating:
    """One look at the instances."""

    def __init__(
        self,
        plane: ControlPlane,
        instances: Instances,
        requests: Requests,
        moves: Moves,
        ended: Callable[[int], None],
    ) -> None:
        self._plane = plane
        self._instances = instances
        self._requests = requests
        self._moves = moves
        self._has_ended = ended
        self.can_serve = False
        self._handlers: dict[type, Callable[[Post, Any, float, News], None]] = {
            say.InstanceReady: self._ready,
            say.Alive: self._alive,
            say.VersionLoaded: self._loaded,
            say.Report: self._report,
            say.RequestEnded: self._ended,
            say.RequestRefused: self._failed,
            say.RequestExported: self._exported,
            say.RequestImported: self._imported,
            say.DeviceLent: lambda post, _, at, news: news.inputs.append(
                told.Lent(at=at, instance=post.number)
            ),
            say.DeviceReturned: lambda post, _, at, news: news.inputs.append(
                told.Returned(at=at, instance=post.number)
            ),
        }

    def look(self, at: float) -> News:
        """Everything the instances said, and who of them is gone."""
        news = News()
        for post, word in self._instances.words():
            self._handlers[type(word)](post, word, at, news)
        for lost in self._instances.lost():
            self.lose(lost.number)
            if lost.was_joined:
                news.inputs.append(told.InstanceLost(at=at, instance=lost.number, reason=lost.reason))
        return news

    def lose(self, number: int) -> None:
        """The requests of an instance are gone; what is journalled of them is not."""
        for placed in self._requests.on(number):
            self._requests.forget(placed.trajectory)
            self._moves.forget(placed.trajectory)

    # --- instances ------------------------------------------------------------------------------

    def _ready(self, post: Post, word: say.InstanceReady, at: float, news: News) -> None:
        post.spec = word.spec
        if self.can_serve:
            self._instances.serve(post, self._plane.window.newest)

    def open_store(self) -> None:
        """The store holds the newest version: whoever waits for it may load it."""
        self.can_serve = True
        for post in self._instances.posts.values():
            if post.phase is Phase.STARTING and post.spec is not None:
                self._instances.serve(post, self._plane.window.newest)

    def _loaded(self, post: Post, word: say.VersionLoaded, at: float, news: News) -> None:
        if post.phase is Phase.JOINED:
            news.inputs.append(told.Loaded(at=at, instance=post.number, version=word.version))
            return
        assert post.spec is not None, f"{post.name} loaded a version before it was ready"
        if word.version != self._plane.window.newest:
            # Published meanwhile; and the one it has may be retired before control hears of it.
            post.handle.send(say.LoadVersion(version=self._plane.window.newest, drop=(word.version,)))
            return
        post.enter(Phase.JOINED)
        news.inputs.append(
            told.InstanceJoined(at=at, instance=post.number, spec=post.spec, version=word.version)
        )

    def _alive(self, post: Post, word: say.Alive, at: float, news: News) -> None:
        if post.phase is Phase.JOINED:
            news.inputs.append(self._load_report(post, at))

    def _report(self, post: Post, word: say.Report, at: float, news: News) -> None:
        post.report = word
        if post.phase is not Phase.JOINED:
            return
        for drawn in word.drawn:
            self._grow(post, drawn, news)
        news.inputs.append(self._load_report(post, at))
        if word.is_pressed:
            news.inputs.append(
                told.KvPressure(at=at, instance=post.number, clock=word.clock, kv_tokens=word.kv_tokens)
            )

    def _load_report(self, post: Post, at: float) -> Input:
        report = post.report or say.Report(clock=0.0, kv_tokens=0, step_s=0.0)
        return told.LoadReport(
            at=at,
            instance=post.number,
            clock=report.clock,
            kv_tokens=report.kv_tokens,
            # Before it decoded anything it knows no better than anyone else.
            step_s=report.step_s or self._plane.estimates.step_s,
        )

    # --- requests -------------------------------------------------------------------------------

    def _grow(self, post: Post, drawn: DrawnTokens, news: News) -> Placed | None:
        """Tokens of a request; None if the instance no longer has it."""
        placed = self._requests.find(drawn.request, post.number)
        if placed is None:
            return None
        draft = self._requests.drafts[placed.trajectory]
        if drawn.tokens:
            news.payloads.append(
                Progress(
                    trajectory=placed.trajectory,
                    attempt=draft.attempt,
                    start=len(draft.tokens),
                    tokens=drawn.tokens,
                    version=drawn.version,
                    logprobs=drawn.logprobs,
                    cut_logprobs=drawn.cut_logprobs,
                )
            )
            draft.tokens += drawn.tokens
        return placed

    def _ended(self, post: Post, word: say.RequestEnded, at: float, news: News) -> None:
        placed = self._grow(post, word.drawn, news)
        if placed is None:
            return
        key = placed.trajectory
        draft = self._requests.drafts[key]
        self._requests.forget(key)
        self._moves.forget(key)
        news.payloads.append(
            Completed(
                trajectory=key,
                attempt=draft.attempt,
                num_tokens=len(draft.tokens),
                is_truncated=word.is_truncated,
            )
        )
        news.inputs.append(
            told.Ended(
                at=at,
                instance=post.number,
                trajectory=key,
                tokens=len(draft.tokens),
                clock=word.clock,
                kv_tokens=word.kv_tokens,
                truncated=word.is_truncated,
            )
        )
        news.after.append(lambda: self._has_ended(key))

    def _failed(self, post: Post, word: say.RequestRefused, at: float, news: News) -> None:
        placed = self._requests.find(word.request, post.number)
        if placed is None:
            return
        self._requests.forget(placed.trajectory)
        if self._moves.forget(placed.trajectory):
            news.inputs.append(told.MoveFailed(at=at, trajectory=placed.trajectory, reason=word.reason))
        else:
            news.inputs.append(told.Refused(at=at, trajectory=placed.trajectory, reason=word.reason))

    # --- moving ---------------------------------------------------------------------------------

    def _exported(self, post: Post, word: say.RequestExported, at: float, news: News) -> None:
        placed = self._grow(post, word.drawn, news)
        if placed is not None:
            moved = self._moves.left(placed, word.kv_bytes, at)
            news.inputs += moved.inputs
            news.after.append(moved.after)

    def _imported(self, post: Post, word: say.RequestImported, at: float, news: News) -> None:
        placed = self._requests.find(word.request, post.number)
        if placed is not None:
            news.inputs += self._moves.arrived(placed, at)
