"""How long groups are, in decode rounds of each of their members: as learned, whatever R and the load are.

Groups count in the order in which they started, and only those before the first one still under way:
otherwise the short ones would be known first.
"""

from collections import deque

from dora_rl.control.estimates import Average

_REMEMBERED = 1024
"""Number of groups that are remembered."""


class GroupRounds:
    """Rounds of the members of groups under way, and of the latest ones that are complete."""

    def __init__(self) -> None:
        self._under_way: dict[int, dict[int, float]] = {}
        """Rounds by member of each group under way, those that ended among them, in order of start."""
        self._waits: dict[tuple[int, int], float] = {}
        self._ended: set[int] = set()
        self.complete: deque[tuple[float, ...]] = deque(maxlen=_REMEMBERED)
        """Rounds of each member of a group, in order of start."""
        self.prompt_tokens = Average(0.0, weight=0.02)

    def started(self, group: int, prompt_tokens: int) -> None:
        self._under_way[group] = {}
        self.prompt_tokens.observe(prompt_tokens)

    def waited(self, group: int, member: int, rounds: float) -> None:
        """A member's environment had the turn for as long as so many rounds take."""
        if group in self._under_way:
            self._waits[group, member] = self._waits.get((group, member), 0.0) + rounds

    def member_ended(self, group: int, member: int, tokens: int) -> None:
        """A member ended after so many tokens, and what it waited."""
        if (members := self._under_way.get(group)) is not None:
            members[member] = tokens + self._waits.pop((group, member), 0.0)

    def ended(self, group: int) -> None:
        """A group finished, or was filtered: it is complete once all that started before it are."""
        if group in self._under_way:
            self._ended.add(group)
            self._complete()

    def forget(self, group: int) -> None:
        """A group was closed before its end, or after it: nobody waits for it."""
        if group not in self._ended and self._under_way.pop(group, None) is not None:
            self._complete()

    def _complete(self) -> None:
        while self._under_way and (first := next(iter(self._under_way))) in self._ended:
            self._ended.remove(first)
            if members := self._under_way.pop(first):
                self.complete.append(tuple(members.values()))
