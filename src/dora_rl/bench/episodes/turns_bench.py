"""The bench of long episodes: what the codec takes of a turn as they grow, and what is trained on of them.

The members of a group are played as an episode process plays them, with a policy that thinks in every turn.
What the engine would have seen is recorded as the journal has it, and made into the trainer's rows as in a
run.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from dora_rl.core.record import Record
from dora_rl.core.stream_key import StreamKey
from dora_rl.engines.requests import Sampling
from dora_rl.envs.chat.chat_tokenizer import open_chat_tokenizer
from dora_rl.envs.chat.codec import Codec, Parsed, ThinkingKept
from dora_rl.envs.chat.messages import Message, ToolSchema
from dora_rl.envs.chat.open_codec import open_codec
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode_function import episode_function
from dora_rl.envs.episodes.limits import EpisodeLimits
from dora_rl.envs.episodes.runner import EpisodeRunner
from dora_rl.run.journalled_groups import group_of
from dora_rl.store.journal_records import (
    FinishedGroup,
    JournalledBranch,
    JournalledTrajectory,
    JournalledTurn,
    Response,
    Stretch,
)
from dora_rl.trainer.train_batch import TrainTrajectory

_MEMBERS = 8
_TURNS = (8, 32, 128)
_PLAYED_TURNS = 4096
"""Turns that each length of episodes is measured over."""
_SAID = "The tool gives 42. Go on, and mind the units of the last two columns."


class TurnsFigure(Record, frozen=True):
    """Episodes of one length: seconds of a turn, and what became of all that was drawn."""

    turns: int
    thinking: ThinkingKept
    codec_turn_s: float
    """CPU seconds of the codec for a turn."""
    turn_s: float
    """CPU seconds of everything in the episode's process for a turn."""
    rows: int
    """Rows that the trainer is given for a group of eight."""
    sampled_tokens: int
    untrained_tokens: int
    """Sampled tokens that are in no row as the policy's."""
    changed_tokens: int
    """Sampled tokens in the place of which a row has another."""

    @property
    def codec_share(self) -> float:
        """Share of a turn that is the codec's."""
        return self.codec_turn_s / self.turn_s


class _TimedCodec:
    """A codec whose time is counted. Implements Codec."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.seconds = 0.0

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._codec.stop_ids

    def begin(self, messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()) -> list[int]:
        began = time.thread_time()
        found = self._codec.begin(messages, tools)
        self.seconds += time.thread_time() - began
        return found

    def extend(
        self, ids: Sequence[int], messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()
    ) -> list[int] | None:
        began = time.thread_time()
        found = self._codec.extend(ids, messages, tools)
        self.seconds += time.thread_time() - began
        return found

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Parsed:
        began = time.thread_time()
        found = self._codec.parse(ids, tools)
        self.seconds += time.thread_time() - began
        return found


class _Played(Struct, kw_only=True):
    """What the engine saw of one member: the tokens of each branch, and who each stretch of them is of."""

    prompt: Sequence[int] = ()
    """The context that the first branch begins with."""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    orders: dict[int, list[int]] = field(default_factory=dict)
    drawn: dict[int, list[int]] = field(default_factory=dict)
    """What the policy drew in each branch."""
    num_turns: int = 0

    def add(self, branch: int, asked: Sequence[int], drawn: Sequence[int]) -> None:
        """A turn: what was asked is the environment's, what was drawn the policy's."""
        tokens, stretches = self.tokens.setdefault(branch, []), self.stretches.setdefault(branch, [])
        if not self.prompt:
            self.prompt, asked = asked, ()
        for stretch, version in ((asked, None), (drawn, 0)):
            if stretch:
                stretches.append(Stretch(start=len(tokens), version=version))
                tokens += stretch
        self.orders.setdefault(branch, []).append(self.num_turns)
        self.drawn.setdefault(branch, []).extend(drawn)
        self.num_turns += 1

    def journalled(self, member: int) -> JournalledTrajectory:
        """The same as the journal gives it back."""
        branches = [self._branch(number) for number in sorted(self.tokens)]
        return JournalledTrajectory(
            trajectory=member,
            group=0,
            version=0,
            key=StreamKey(seed=0, row=0, member=member),
            prompt=tuple(self.prompt),
            response=branches[0].response,
            turns=branches[0].turns,
            branches=tuple(branches[1:]),
            is_truncated=False,
            is_evaluation=False,
            reward=0.0,
        )

    def _branch(self, number: int) -> JournalledBranch:
        tokens, stretches = tuple(self.tokens[number]), tuple(self.stretches[number])
        response = Response(tokens=tokens, stretches=stretches)
        num_drawn = sum(response.is_policy)
        return JournalledBranch(
            number=number,
            response=Response(tokens=tokens, stretches=stretches, logprobs=(-1.0,) * num_drawn),
            turns=tuple(JournalledTurn(finish="stop", order=order) for order in self.orders[number]),
        )


def bench_turns(tokenizer: Path, *, turns: Sequence[int] = _TURNS) -> tuple[TurnsFigure, ...]:
    """Measure episodes of several lengths with thinking kept, and the shortest with thinking stripped."""
    kept = [measure_turns(tokenizer, count, "keep") for count in turns]
    return (*kept, measure_turns(tokenizer, min(turns), "strip"))


def measure_turns(tokenizer: Path, turns: int, thinking: ThinkingKept) -> TurnsFigure:
    """Play groups of episodes of so many turns: seconds are of all of them, rows of the last group."""
    codec = _TimedCodec(open_codec(tokenizer, thinking=thinking))
    codec.seconds, seconds, num_turns = 0.0, 0.0, 0
    while num_turns < _PLAYED_TURNS:
        began = time.process_time()
        members = asyncio.run(_GroupInPlay(codec, tokenizer, turns).played())
        seconds += time.process_time() - began
        num_turns += _MEMBERS * turns
    group = FinishedGroup(
        group=0, version=0, members=tuple(each.journalled(n) for n, each in enumerate(members))
    )
    trained = group_of(group, Sampling()).members
    drawn = [tokens for played in members for _, tokens in sorted(played.drawn.items())]
    kept = [own for member in trained for own in _policy_tokens(member)]
    return TurnsFigure(
        turns=turns,
        thinking=thinking,
        codec_turn_s=codec.seconds / num_turns,
        turn_s=seconds / num_turns,
        rows=len(kept),
        sampled_tokens=sum(map(len, drawn)),
        untrained_tokens=sum(map(len, drawn)) - sum(map(len, kept)),
        changed_tokens=sum(
            said != own
            for row, own_row in zip(drawn, kept, strict=True)
            for said, own in zip(row, own_row, strict=False)
        ),
    )


def _policy_tokens(member: TrainTrajectory) -> list[list[int]]:
    """Of each row of a member, the tokens that a loss is computed for."""
    rows = [(member.response, member.is_policy or (True,) * len(member.response))]
    rows += [(branch.tokens, branch.is_policy) for branch in member.branches]
    return [
        [token for token, own in zip(tokens, is_policy, strict=True) if own] for tokens, is_policy in rows
    ]


class _GroupInPlay:
    """The members of a group, played side by side in one loop, and a policy that answers at once."""

    def __init__(self, codec: _TimedCodec, tokenizer: Path, turns: int) -> None:
        self._codec = codec
        self._encode = open_chat_tokenizer(tokenizer).encode
        self._turns = turns
        self._members = [_Played() for _ in range(_MEMBERS)]
        self._num_left = _MEMBERS

    async def played(self) -> list[_Played]:
        """What came of all members."""
        turns, self._is_over = self._turns, asyncio.Event()

        async def talk(chat: Chat, row: Row) -> float:
            for _ in range(turns):
                await chat.turn(_SAID)
            return 1.0

        limits = EpisodeLimits(start_limit_s=600.0, call_limit_s=600.0)
        self._runner = EpisodeRunner(
            episode_function("talk", talk, {}), self._codec, limits, self._hear, run="bench"
        )
        for member in range(_MEMBERS):
            row = Row(row=0, prompt="", columns={})
            begin = say.BeginEpisode(episode=member, row=row, epoch=0, member=member, attempt=0, seed=0)
            self._runner.tell(begin)
        await self._is_over.wait()
        return self._members

    def _hear(self, word: say.EpisodeReply) -> None:
        match word:
            case say.TurnAsked():
                member = self._members[word.episode]
                said = f"<think>turn {member.num_turns} of member {word.episode}</think>It is {word.number}."
                drawn = [*self._encode(said), *self._codec.stop_ids]
                member.add(word.branch, word.tokens, drawn)
                taken = say.TurnTaken(
                    episode=word.episode,
                    branch=word.branch,
                    number=word.number,
                    tokens=tuple(drawn),
                    finish="stop",
                )
                asyncio.get_running_loop().call_soon(self._runner.tell, taken)
            case say.EpisodeDone():
                self._num_left -= 1
                if not self._num_left:
                    self._is_over.set()
            case _:
                raise AssertionError(f"an episode of the bench said {word}")
