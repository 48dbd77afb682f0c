"""The queue of prompts that wait to be started.

    waiting ──Open──> opening ──Opened──> ready ──> a group, pinned to a version
                         └──OpenFailed──> dropped

In a run without environments what waits is ready. Which row comes next is chosen outside of control and told
to it: a choice is an input like any other, so a replay needs neither the rows nor whoever chose. Queued
prompts have no version: waiting does not age them. Control may change the order of the next few that are
ready, never which they are.
"""

from collections import deque
from itertools import islice

from dora_rl.control.row_lengths import RowLengths
from dora_rl.core.inputs import QueuedPrompt


class PromptQueue:
    """Prompts in the order they were offered, or opened; on demand those of long responses first."""

    def __init__(self, *, most_at_once: int, has_environments: bool = False) -> None:
        self.most_at_once = most_at_once
        """Most groups that one input can let start: with so many queued, none waits for an offer."""
        self.waiting: deque[QueuedPrompt] = deque()
        self.opening: dict[tuple[int, int], QueuedPrompt] = {}
        """Prompts whose environments are being reset, by (epoch, row)."""
        self.ready: deque[QueuedPrompt] = deque() if has_environments else self.waiting
        """Prompts that may start."""
        self.is_exhausted = False
        """Whether the source has no more prompts to offer."""
        self.put_off: deque[QueuedPrompt] = deque()
        """Prompts whose groups took too long, and which start together in a round of their own."""
        self._passed_over = 0
        """Prompts at the head of those ready that others were put before."""

    def __len__(self) -> int:
        num_waiting = len(self.waiting)
        return num_waiting if self.ready is self.waiting else num_waiting + self.num_ahead

    @property
    def num_ahead(self) -> int:
        """Number of prompts whose environments are reset, or are being reset."""
        return len(self.opening) + len(self.ready)

    def peek(self) -> QueuedPrompt:
        """The prompt that starts next, left in the queue; one must be ready."""
        return self.ready[0]

    def take(self) -> QueuedPrompt:
        """Remove and return the prompt that starts next."""
        self._passed_over = max(0, self._passed_over - 1)
        return self.ready.popleft()

    def begin_long_round(self, batch_groups: int) -> bool:
        """Let prompts that were put off start next if they fill a batch, or nothing else does any more."""
        nothing_else = self.is_exhausted and len(self.waiting) < batch_groups
        if not self.put_off or not (nothing_else or len(self.put_off) >= batch_groups):
            return False
        self.waiting.extendleft(reversed(list(islice(self.put_off, batch_groups))))
        self.put_off = deque(islice(self.put_off, batch_groups, None))
        return True

    def put_long_first(self, count: int, lengths: RowLengths) -> None:
        """Of the next `count` prompts let those start first whose responses were long; each waits once."""
        block = list(islice(self.ready, self._passed_over, count))
        if lengths.knows_any_of(prompt.row for prompt in block):
            block.sort(key=lambda prompt: -lengths.expected(prompt.row))
            for position, prompt in enumerate(block, start=self._passed_over):
                self.ready[position] = prompt
            self._passed_over += len(block)

    # --- environments ---

    def open(self) -> QueuedPrompt:
        """The next prompt that waits, whose environments are reset from now on."""
        prompt = self.waiting.popleft()
        self.opening[prompt.epoch, prompt.row] = prompt
        return prompt

    def opened(self, epoch: int, row: int, tokens: int) -> None:
        """Let a prompt start whose environments are reset; `tokens` is what its members begin with."""
        if self.opening.pop((epoch, row), None) is not None:
            self.ready.append(QueuedPrompt(epoch=epoch, row=row, tokens=tokens))

    def drop(self, epoch: int, row: int) -> bool:
        """Forget a prompt whose environments could not be reset; False if it is not being opened."""
        return self.opening.pop((epoch, row), None) is not None
