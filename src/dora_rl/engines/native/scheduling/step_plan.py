"""One step of an engine as plain data, and the executor that carries it out.

Plans are carried out one after the other in the order they were made, each as: moves in order, tables,
entrants, then one forward pass over the rows under one version. A plan can therefore be made before the
tokens of the plan before it are known: a row without tokens continues its slot with whatever was drawn there
last, and a block given up by one plan may be written by the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from dora_rl.core.record import Record
from dora_rl.engines.requests import Sampling
from dora_rl.engines.streams import Words


class CopyBlock(Record, frozen=True):
    """Copy a block, so that one of its users may write."""

    source: int
    target: int


class ParkBlocks(Record, frozen=True):
    """Copy the KV of the first `num_tokens` tokens to host memory, under this ticket."""

    ticket: int
    blocks: tuple[int, ...]
    num_tokens: int


class UnparkBlocks(Record, frozen=True):
    """Copy parked KV into these blocks and forget it."""

    ticket: int
    blocks: tuple[int, ...]


class DiscardBlocks(Record, frozen=True):
    """Forget parked KV without reading it."""

    ticket: int


Move = CopyBlock | ParkBlocks | UnparkBlocks | DiscardBlocks


class Table(Record, frozen=True):
    """From its `first`-th block on, the sequence in this slot lies in these blocks."""

    slot: int
    first: int
    blocks: tuple[int, ...]


class Entrant(Record, frozen=True):
    """A slot gets a new sequence: how it draws, from which random stream."""

    slot: int
    version: int
    """The version of the sequence, whatever version the plan's rows run."""
    sampling: Sampling
    stream: Words


class PlannedRow(Record, frozen=True):
    """Consecutive tokens of one sequence to compute, and whether to draw the token after them.

    Guesses are computed behind them, with a draw after each: of use where every guess before it was drawn.
    """

    serial: int
    """The turn of the sequence that the row belongs to; an answer to a turn that is over is dropped."""
    slot: int
    start: int
    """Position of the row's first token in its sequence."""
    tokens: tuple[int, ...]
    """Token ids to compute; empty for the one token drawn last in this slot."""
    is_sampled: bool
    guesses: tuple[int, ...] = ()
    num_recomputed: int = 0
    """How many of the tokens were computed before, here or elsewhere."""

    @property
    def num_tokens(self) -> int:
        """How many tokens this row computes."""
        return (len(self.tokens) or 1) + len(self.guesses)

    @property
    def num_draws(self) -> int:
        """How many tokens are drawn, behind the last ones of the row."""
        return 1 + len(self.guesses) if self.is_sampled else 0

    @property
    def is_decoding(self) -> bool:
        """Whether the row is one token and a draw; such rows come first in a plan."""
        return self.is_sampled and len(self.tokens) <= 1


class Plan(Record, frozen=True):
    """One step of an engine: moves, tables, entrants, and the rows of one version."""

    version: int | None
    """The version whose weights run the rows; None where there are no rows."""
    rows: tuple[PlannedRow, ...]
    moves: tuple[Move, ...] = ()
    tables: tuple[Table, ...] = ()
    entrants: tuple[Entrant, ...] = ()
    awaits_rows: bool = False
    """Whether the plan's moves read or take what rows of the plan before it write. If not, and the
    versions differ, the moves of both may come before the rows of both."""

    @property
    def num_tokens(self) -> int:
        """How many tokens the forward pass computes."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def has_guesses(self) -> bool:
        """Whether a row has guesses."""
        return any(row.guesses for row in self.rows)

    @property
    def prefilling(self) -> list[PlannedRow]:
        """The rows that do more than decode, last first: they come behind those that decode."""
        return list(takewhile(lambda row: not row.is_decoding, reversed(self.rows)))

    @property
    def num_blocks_copied(self) -> int:
        """How many blocks of KV go to host memory or come from there."""
        return sum(len(move.blocks) for move in self.moves if isinstance(move, ParkBlocks | UnparkBlocks))


@dataclass(slots=True)
class Draft:
    """Moves, tables and entrants that the next plan starts with, in order."""

    moves: list[Move] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    entrants: list[Entrant] = field(default_factory=list)
    awaits_rows: bool = False


class Sampled(Record, frozen=True):
    """Tokens and logprobs that were drawn, those of each sampled row of a plan in order."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut_logprobs: tuple[float, ...]
    """Logprobs after top-k, top-p and min-p; equal to `logprobs` for rows without a cut."""
    experts: tuple[bytes, ...] = ()
    """The experts behind each draw, where they are recorded."""

    @property
    def columns(self) -> tuple[Sequence[int], Sequence[float], Sequence[float], Sequence[bytes]]:
        """What there is of each draw, side by side; no experts where they are not recorded."""
        return self.tokens, self.logprobs, self.cut_logprobs, self.experts or (b"",) * len(self.tokens)


class Launched(Protocol):
    """A step that was launched and whose answers may not be there yet."""

    def result(self) -> Sampled:
        """Wait for the step to end; returns what it drew."""
        ...


class Executor(Protocol):
    """Carries out plans on a device."""

    @property
    def joins_versions(self) -> bool:
        """Whether plans of one round should be launched together."""
        ...

    def launch(self, plan: Plan) -> Launched:
        """Begin a step, after all launched before it; need not wait for any of them."""
        ...

    def launch_together(self, plans: Sequence[Plan]) -> Sequence[Launched]:
        """Begin the steps of several versions, none of which awaits rows of another, as if in this order."""
        ...
