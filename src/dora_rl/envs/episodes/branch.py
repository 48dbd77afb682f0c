"""A branch of an episode: token ids as the engine sees them, and the messages they came from.

Owns the numbers: of a branch by how it was opened, of an operation by its place in the branch. So coroutines
that race have the same numbers each time they are run.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2s

from msgspec import Struct, field

from dora_rl.envs.chat.messages import Message, ToolSchema

ROOT = 0
"""The number of the branch that an episode begins with."""


def child_number(parent: int, place: int) -> int:
    """The number, 1 to 2**32 - 1, of the child that a branch opens in this place among its children."""
    digest = blake2s(f"{parent}/{place}".encode(), digest_size=4).digest()
    # The root's number is nobody else's.
    return int.from_bytes(digest, "little") or 1


def named_number(name: bytes) -> int:
    """The number of a branch that is known by what was said in it, in whatever order branches come."""
    return int.from_bytes(blake2s(name, digest_size=4).digest(), "little") or 1


def _no_ids() -> "array[int]":
    # Four bytes a token: ten thousand episodes may wait in a process.
    return array("I")


class Branch(Struct, kw_only=True, eq=False):
    """One sequence of tokens of an episode, an extension of its own past at every turn."""

    number: int = ROOT
    ids: "array[int]" = field(default_factory=_no_ids)
    """Every token of the branch so far, its context and what was drawn."""
    messages: list[Message] = field(default_factory=list)
    """The same as messages, for a branch that has to begin anew."""
    tools: tuple[ToolSchema, ...] = ()
    """The tools that its context names."""
    is_trained: bool = True
    has_begun: bool = False
    """Whether its context was asked for; before that all of `ids` is to be sent."""
    _num_operations: int = 0
    _num_children: int = 0

    @property
    def num_operations(self) -> int:
        return self._num_operations

    @property
    def num_children(self) -> int:
        return self._num_children

    def next_operation(self) -> int:
        """The number of the operation that its code asks for now."""
        self._num_operations += 1
        return self._num_operations - 1

    def next_child(self) -> int:
        """The number of the branch that its code opens now."""
        self._num_children += 1
        return child_number(self.number, self._num_children - 1)

    @property
    def length(self) -> "BranchLength":
        """How much there is of it: to go on from here later, when it is longer."""
        return BranchLength(num_ids=len(self.ids), num_messages=len(self.messages))

    def forked(self, *, number: int | None = None, at: "BranchLength | None" = None) -> "Branch":
        """A child that goes on from the same tokens, or from those that there were at some point."""
        at = at or self.length
        return Branch(
            number=self.next_child() if number is None else number,
            ids=self.ids[: at.num_ids],
            messages=self.messages[: at.num_messages],
            tools=self.tools,
            is_trained=self.is_trained,
        )

    def fresh(self, messages: Sequence[Message], *, is_trained: bool, number: int | None = None) -> "Branch":
        """A child without tokens, whose first turn begins with these messages."""
        number = self.next_child() if number is None else number
        return Branch(number=number, messages=list(messages), is_trained=is_trained)


class BranchLength(Struct, frozen=True, kw_only=True):
    """How much of a branch there is at some point."""

    num_ids: int
    num_messages: int
