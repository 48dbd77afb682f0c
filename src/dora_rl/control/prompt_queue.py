"""The queue of prompts that wait to be started.

Which row comes next is chosen outside of control and told to it: a choice is an input like any other, so a
replay needs neither the rows nor whoever chose. Queued prompts have no version: waiting does not age them.
"""

from collections import deque

from dora_rl.core.inputs import QueuedPrompt


class PromptQueue:
    """Prompts in the order they were offered."""

    def __init__(self, *, most_at_once: int) -> None:
        self.most_at_once = most_at_once
        """Most groups that one input can let start: with so many queued, none waits for an offer."""
        self.waiting: deque[QueuedPrompt] = deque()
        self.is_exhausted = False
        """Whether the source has no more prompts to offer."""

    def __len__(self) -> int:
        return len(self.waiting)

    def peek(self) -> QueuedPrompt:
        """The prompt that starts next, left in the queue, which must not be empty."""
        return self.waiting[0]

    def take(self) -> QueuedPrompt:
        """Remove and return the prompt that starts next."""
        return self.waiting.popleft()
