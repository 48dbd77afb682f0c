"""A served model: requests as draws, versions that follow each other, and what is refused."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from dora_rl.api import model_server
from dora_rl.api.served_model import serve, served_source
from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.recipe.generation import Sampling
from dora_rl.engines.requests import DrawnTokens, Request
from dora_rl.envs.chat.codec import Parsed
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.turn_request import TurnRequest
from dora_rl.prepare.messages import NewestTaken, TakeNewest, TakenVersion
from dora_rl.run import messages as say
from dora_rl.run.run_setup import DeviceLayout
from dora_rl.run.serving import served_instances
from dora_rl.run.serving.engine_answers import EngineAnswers
from dora_rl.run.serving.served_instances import DrawnResponse, RequestRefusal, ServedInstances


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 20.0))

    return run


class Letters:
    """A codec in which a token is a character. Implements Codec."""

    stop_ids = frozenset((0,))

    def begin(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> list[int]:
        if messages[0].get("role") == "tool":
            raise UserError("a chat cannot begin with a result", hint="begin with a message")
        return [ord(each) for message in messages for each in message["content"]]

    def parse(self, ids: Sequence[int], tools: Sequence[Any] = ()) -> Parsed:
        return Parsed(text="".join(map(chr, ids)))


class Scripted:
    """Says the same whatever is asked. Implements DrawsResponses."""

    version = 3

    def __init__(self, said: str = "one, two") -> None:
        self.said, self.requests = said, list[Request]()

    async def drawn(self, make: Callable[[int, int], Request]) -> DrawnResponse:
        self.requests.append(make(len(self.requests), self.version))
        if self.requests[-1].prompt[:1] == (ord("!"),):
            raise RequestRefusal("token 33 is not of the model")
        tokens = tuple(map(ord, self.said))
        return DrawnResponse(tokens=tokens, logprobs=(-0.5,) * len(tokens), version=2, finish="stop")


def answers_of(drawing: Any, **changes: Any) -> EngineAnswers:
    settings: dict[str, Any] = {
        "context_tokens": 20,
        "stop_tokens": (0,),
        "stop_strings": ("END",),
        "sampling": Sampling(top_k=7),
        "token_text": chr,
        "names": {2: "run@12", 3: "run@13"},
    }
    return EngineAnswers(Letters(), drawing, **settings | changes)  # type: ignore[arg-type]


def asked(text: str = "hello", **fields: Any) -> TurnRequest:
    return TurnRequest(({"role": "user", "content": text},), **fields)


# --- requests -----------------------------------------------------------------------------------


@looped
async def test_a_client_s_sampling_limit_and_stops_hold() -> None:
    drawing = Scripted()
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": -1, "presence_penalty": 0}
    answers = answers_of(drawing)
    (answer,) = await answers.answers(asked(max_tokens=4, stop=(",",), sampling=sampling))
    (request,) = drawing.requests
    assert request.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=7), "the rest is the run's"
    assert request.key.seed == 2**64 - 1
    assert request.stopping.max_new_tokens == 4
    assert request.stopping.stop_strings == ("END", ",")
    assert request.stopping.stop_tokens == (0,)
    assert request.version == 3, "the newest answers"
    assert (answer.text, answer.turn.text) == ("one", "one, two")
    assert answer.model == "run@12", "who answered is what the tokens were drawn by"
    assert answers.model == "run@13"
    assert answer.num_prompt_tokens == 5
    assert answer.logprobs is None
    assert answers.counts == {"requests": 1, "tokens": 8}


@looped
async def test_without_a_limit_an_answer_may_fill_the_context_and_draws_are_new() -> None:
    drawing = Scripted()
    answers = answers_of(drawing)
    for _ in range(2):
        await answers.answers(asked(num_answers=2, wants_logprobs=True))
    assert [each.stopping.max_new_tokens for each in drawing.requests] == [15] * 4
    assert [each.key.member for each in drawing.requests] == [0, 1, 0, 1]
    first, second, third, _ = drawing.requests
    assert first.key.seed == second.key.seed != third.key.seed
    assert first.group == second.group != third.group, "answers to one request share its prompt"
    (answer,) = await answers.answers(asked(wants_logprobs=True))
    assert answer.logprobs is not None
    assert answer.logprobs[:2] == (("o", -0.5), ("n", -0.5))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sampling": {"presence_penalty": 0.5}}, "'presence_penalty' is not had here"),
        ({"sampling": {"reasoning_effort": "low"}}, "'reasoning_effort' is not had here"),
        ({"sampling": {"temperature": "hot"}}, "'temperature' is a number"),
        ({"sampling": {"top_k": 1.5}}, "'top_k' is a number"),
        ({"sampling": {"temperature": -1}}, "temperature -1"),
        ({"sampling": {"top_p": 0}}, "top_p 0"),
        ({"sampling": {"seed": "x"}}, "'seed' is a whole number"),
        ({"text": "x" * 20}, "the conversation has 20 tokens"),
        ({"text": "!"}, "the engine refuses it: token 33"),
    ],
)
def test_what_cannot_be_held_to_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(EndpointError, match=said) as refused:
        asyncio.run(answers_of(Scripted()).answers(asked(**fields)))
    assert refused.value.status == 400


def test_messages_that_the_template_refuses_are_the_client_s_mistake() -> None:
    request = TurnRequest(({"role": "tool", "content": "3"},))
    with pytest.raises(EndpointError, match="cannot begin with a result"):
        asyncio.run(answers_of(Scripted()).answers(request))


# --- instances ----------------------------------------------------------------------------------


class FakeWorker:
    """A process that only listens, and says what a test has it say. Implements Handle."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._words: list[Any] = []
        self._ours, self._theirs = socket.socketpair()
        self.is_alive = True

    def says(self, *words: Any) -> None:
        self._words += words
        self._theirs.send(b"!")

    def dies(self) -> None:
        self.is_alive = False
        self._theirs.send(b"!")

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def flush(self) -> bool:
        return True

    def receive(self) -> list[Any]:
        self._ours.recv(64)
        words, self._words = self._words, []
        return words

    def fileno(self) -> int:
        return self._ours.fileno()

    def end(self, within_s: float) -> str:
        return "killed by SIGKILL"

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class FakeSetup:
    def __init__(self, place: Path, instances: int) -> None:
        self.run_directory, self.devices = str(place), DeviceLayout(instances=instances)


async def opened(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> tuple[ServedInstances, list[FakeWorker]]:
    workers = [FakeWorker() for _ in range(number)]
    monkeypatch.setattr(served_instances, "start_instance", lambda number, *rest: workers[number])
    instances = ServedInstances(FakeSetup(place, number), (0,), launch=None)  # type: ignore[arg-type]
    for worker in workers:
        instances.callback(worker.close)
        worker.says(say.VersionLoaded(version=0, load_s=0.0))
    # What is called back last is closed first: readers leave the loop before their descriptors are closed.
    instances._exit_callbacks.rotate(number)  # type: ignore[attr-defined]
    await instances.settled()
    return instances, workers


def drawn(id: int, text: str, version: int = 0) -> DrawnTokens:
    return DrawnTokens(
        request=id,
        version=version,
        tokens=tuple(map(ord, text)),
        logprobs=(-1.0,) * len(text),
        cut_logprobs=(),
    )


def ended(id: int, text: str, version: int = 0) -> say.RequestEnded:
    return say.RequestEnded(drawn=drawn(id, text, version), clock=0.0, kv_tokens=0, finish="stop")


def started(instances: ServedInstances) -> "asyncio.Task[DrawnResponse]":
    """A request that is sent as soon as the loop turns."""

    def make(id: int, version: int) -> Request:
        return Request(id=id, version=version, prompt=(1,), key=None, stopping=None)  # type: ignore[arg-type]

    return asyncio.ensure_future(instances.drawn(make))


@looped
async def test_requests_go_to_the_least_busy_and_come_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances, (one, two) = await opened(tmp_path, monkeypatch, 2)
    with instances:
        tasks = [started(instances) for _ in range(3)]
        await asyncio.sleep(0)
        assert requests_of(one) == [(0, 0), (2, 0)]
        assert requests_of(two) == [(1, 0)]
        one.says(say.Report(clock=0.0, kv_tokens=0, step_s=0.0, drawn=(drawn(0, "ab"), drawn(2, "x"))))
        one.says(ended(0, "c"), ended(9, "of nobody"))
        assert (await tasks[0]).tokens == tuple(map(ord, "abc"))
        assert (await tasks[0]).logprobs == (-1.0,) * 3
        two.says(say.RequestRefused(request=1, reason="too long"))
        with pytest.raises(RequestRefusal, match="too long"):
            await tasks[1]
        tasks[2].cancel()
        await asyncio.wait([tasks[2]])
        assert one.sent[-1] == say.AbortRequest(request=2), "who gives up frees the engine"


@looped
async def test_a_request_keeps_its_version_and_the_old_one_goes_with_its_last_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances, (worker,) = await opened(tmp_path, monkeypatch, 1)
    with instances:
        old = started(instances)
        await asyncio.sleep(0)
        loading = asyncio.ensure_future(instances.load(1))
        await asyncio.sleep(0)
        assert worker.sent[-1] == say.LoadVersion(version=1)
        between = started(instances)
        await asyncio.sleep(0)
        assert requests_of(worker)[-1] == (1, 0), "while it loads, the old one answers"
        worker.says(say.VersionLoaded(version=1, load_s=0.0))
        await loading
        new = started(instances)
        await asyncio.sleep(0)
        assert requests_of(worker)[-1] == (2, 1)
        assert instances.version == 1
        worker.says(ended(0, "a"), ended(2, "b", version=1))
        assert (await old).version == 0
        assert (await new).version == 1
        assert say.DropVersion(version=0) not in worker.sent, "another request is on it"
        worker.says(ended(1, "c"))
        await between
        await instances.settled()
        assert worker.sent[-1] == say.DropVersion(version=0)


def requests_of(worker: FakeWorker) -> list[tuple[int, int]]:
    """Id and version of every request that a worker was told to start."""
    started = [each.request for each in worker.sent if isinstance(each, say.StartRequest)]
    return [(each.id, each.version) for each in started]


@looped
async def test_an_instance_that_dies_is_an_error_not_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances, (worker,) = await opened(tmp_path, monkeypatch, 1)
    with instances:
        (tmp_path / "logs/instance_0.log").write_text("")
        await model_server._first(asyncio.sleep(0), model_server._raised(instances))
        worker.says(say.Broken(message="out of memory"))
        worker.dies()
        with pytest.raises(DoraError, match="instance 0 killed by SIGKILL: out of memory"):
            await model_server._first(asyncio.Event().wait(), model_server._raised(instances))


# --- following ----------------------------------------------------------------------------------


@looped
async def test_newer_versions_of_a_run_are_taken_up_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_server, "_LOOK_EVERY_S", 0.0)
    instances, (worker,) = await opened(tmp_path, monkeypatch, 1)
    reader, names, told = FakeWorker(), {0: "run@4"}, list[str]()
    with instances:
        following = asyncio.ensure_future(
            model_server._follow(reader, instances, names, lambda version: f"run@{version}", told.append)
        )
        await asyncio.sleep(0)
        assert reader.sent == [TakeNewest()]
        reader.says(NewestTaken(version=None))
        while len(reader.sent) < 2:
            await asyncio.sleep(0)
        reader.says(NewestTaken(version=TakenVersion(number=1, run_version=7)))
        while say.LoadVersion(version=1) not in worker.sent:
            await asyncio.sleep(0)
        worker.says(say.VersionLoaded(version=1, load_s=0.0))
        while len(reader.sent) < 3:
            await asyncio.sleep(0)
        assert (names[1], told) == ("run@7", ["run@7 answers now"])
        reader.says(say.Broken(message="the disk is full"))
        reader.dies()
        while len(told) < 2:
            await asyncio.sleep(0)
        assert told[1] == "the run is not followed any more: the disk is full"
        assert not following.done(), "what is there goes on answering"
        following.cancel()
        await asyncio.wait([following])
    reader.close()


# --- what is served -----------------------------------------------------------------------------


def test_what_cannot_be_served_is_said_before_anything_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "setup.json").write_text("{}")
    with pytest.raises(UserError, match="no checkpoint yet"):
        served_source(run, follow=False)
    with pytest.raises(UserError, match="nothing to follow"):
        served_source("tiny", follow=True)
    with pytest.raises(UserError, match="there is no run runs/none"):
        served_source("runs/none", follow=False)
    with pytest.raises(UserError, match=r"has no config\.json"):
        serve(tmp_path)
    with pytest.raises(UserError, match="there is no model 'tinny'"):
        serve("tinny")


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}: Address already in use") as refused:
            serve("tiny", port=port)
    assert refused.value.hint == "give another port; 0 is one that is free"
