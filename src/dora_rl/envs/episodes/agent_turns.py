"""An agent's requests as turns of an episode: each goes on with the branch whose history it repeats.

A client sends the whole conversation each time. Its longest beginning that ends with an answer of ours, in
whatever form the client writes it, says where it goes on: at the end of a branch as that branch's next turn,
further back in a fork of it, both behind the very tokens that were drawn. What repeats nothing begins a fresh
branch. Forks and fresh branches are numbered by what was said, so that an agent which is begun again after a
crash, and whose requests race, asks for the same turns.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.messages import Message
from dora_rl.envs.endpoint.answerer import TurnAnswer
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.turn_request import TurnRequest, histories, next_history
from dora_rl.envs.episodes.branch import Branch, BranchLength, named_number
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.turn import EpisodeClosed, EpisodeTruncated, Turn

MODEL = "policy"
"""The name under which the policy is listed; any other is answered by it too."""
_CALL_ID = 9
"""Characters of a call's id: some chat templates take no other number."""
_WHY = {
    "context": "the conversation is as long as a branch may be (episode.max_context_tokens)",
    "turns": "the episode has taken all its turns (episode.max_turns)",
    "deadline": "the run cannot wait for this episode any longer",
    "time": "the episode took longer than it may (episode.limit_s)",
}


class BranchPoint(Struct, eq=False):
    """Where a conversation can go on: a branch as it was at the end of one of its turns."""

    chat: Chat
    branch: Branch
    length: BranchLength
    is_taken: bool = False
    """Whether the branch went on from here already."""


class AgentTurns:
    """Answers an agent with turns of its episode. Implements Answerer."""

    def __init__(self, chat: Chat, count: Callable[[str], None]) -> None:
        """`chat` is where the agent begins; `count` adds one to a value of the episode."""
        self._chat = chat
        self._count = count
        self._points: dict[bytes, list[BranchPoint]] = {}
        self._asked: Counter[bytes] = Counter()
        """How often each content began a branch."""
        self.conversations: dict[int, list[Message]] = {}
        """By branch, in the order in which they began, what was said in it."""
        self._add_point(chat, histories(chat.branch.messages)[-1])

    @property
    def model(self) -> str:
        return MODEL

    def counted(self, what: str) -> None:
        """Count what a client did among the values of the episode."""
        self._count(f"endpoint/{what}")

    async def answers(self, asked: TurnRequest) -> Sequence[TurnAnswer]:
        """One turn, or several in branches beside each other, behind the conversation of a request."""
        self.counted("requests")
        # Chosen before any is asked for: the first goes on where the conversation stands.
        chosen = [self._chosen(asked) for _ in range(asked.num_answers)]
        answers = await asyncio.gather(
            *(self._answer(point, said, asked) for point, said in chosen), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, TurnAnswer)]

    # --- where ----------------------------------------------------------------------------------

    def _chosen(self, asked: TurnRequest) -> tuple[BranchPoint, tuple[Message, ...]]:
        """The point that a request goes on from, which is taken by it, and what is said there."""
        # The last message is said in any case: a turn answers something.
        for length in range(len(asked.messages) - 1, -1, -1):
            points = self._points.get(asked.histories[length], ())
            point = next((each for each in points if not each.is_taken), None)
            if point is None and points and length:
                point = self._opened(points[0].branch.forked(number=self._number(asked), at=points[0].length))
            if point is not None:
                point.is_taken = True
                return point, asked.messages[length:]
        root = self._chat.branch
        fresh = root.fresh((), is_trained=root.is_trained, number=self._number(asked))
        return self._opened(fresh), asked.messages

    def _opened(self, branch: Branch) -> BranchPoint:
        return BranchPoint(self._chat.at(branch), branch, branch.length)

    def _number(self, asked: TurnRequest) -> int:
        """The number of a branch that a request begins: by its content, and how often that came before."""
        self.counted("branches")
        self._asked[asked.content] += 1
        return named_number(asked.content + b"/%d" % self._asked[asked.content])

    def _add_point(self, chat: Chat, history: bytes) -> None:
        point = BranchPoint(chat, chat.branch, chat.branch.length)
        self._points.setdefault(history, []).append(point)

    # --- a turn ---------------------------------------------------------------------------------

    async def _answer(self, point: BranchPoint, said: tuple[Message, ...], asked: TurnRequest) -> TurnAnswer:
        chat = point.chat
        try:
            turn = await chat.turn(
                list(said), tools=asked.tools, max_tokens=asked.max_tokens, stop=asked.stop
            )
        except UserError as error:
            # It could not be rendered, so nothing was asked for: who asks otherwise goes on from here.
            point.is_taken = False
            raise EndpointError(error.message, code="cannot_be_rendered") from error
        except EpisodeTruncated as error:
            code = "context_length_exceeded" if error.reason == "context" else "episode_truncated"
            raise EndpointError(f"there is no further turn: {_WHY[error.reason]}", code=code) from error
        except EpisodeClosed as error:
            raise EndpointError(error.message, status=410, code="gone") from error
        branch = chat.branch
        if branch is not point.branch:
            self.counted("branches")  # Other tools, or thinking that is stripped.
        turn, text = _with_ids(turn, branch), asked.before_stop(turn.text)
        # As its client has it: without the stop string, which stands in the tokens.
        branch.messages[-1] = message = {**turn.message, "content": text}
        self.conversations[branch.number] = branch.messages
        self._add_point(chat, next_history(asked.histories[-1], message))
        return TurnAnswer(turn=turn, text=text, num_prompt_tokens=len(branch.ids) - len(turn.tokens))


def _with_ids(turn: Turn, branch: Branch) -> Turn:
    """A turn whose calls have ids that no other turn's have: a policy may say the same twice."""
    names = iter(
        blake2b(f"{branch.number}/{len(branch.ids)}/{number}".encode(), digest_size=8).hexdigest()[:_CALL_ID]
        for number in range(len(turn.tool_calls))
    )
    calls = tuple(msgspec.structs.replace(call, id=next(names)) for call in turn.tool_calls)
    ids = iter(call.id for call in calls if call.problem is None)
    message = dict(turn.message)
    if "tool_calls" in message:
        message["tool_calls"] = [{**call, "id": next(ids)} for call in message["tool_calls"]]
    return msgspec.structs.replace(turn, tool_calls=calls, message=message)
