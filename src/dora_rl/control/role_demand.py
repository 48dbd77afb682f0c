"""How much the roles of episodes ask of the frozen versions that play them.

Placement must not follow every single turn: a version that is loaded for one and dropped after it is loaded
again for the next. So what counts is how many turns were awaited of late, and never less than one.
"""

from collections import Counter
from collections.abc import Iterable

from dora_rl.control.estimates import Average

_MEMORY_S = 60.0
"""Seconds after which half of what is remembered of the awaited turns is forgotten."""


class RoleDemand:
    """Turns of roles that are awaited, by the version that plays them, as a running average."""

    def __init__(self, versions: Iterable[int], *, prior_tokens: float) -> None:
        """`versions` are frozen for the whole run; a turn is taken for `prior_tokens` until one has ended."""
        self.versions = frozenset(versions)
        self._awaited: Counter[int] = Counter()
        self._average: dict[int, float] = dict.fromkeys(self.versions, 0.0)
        self._since: dict[int, float] = dict.fromkeys(self.versions, 0.0)
        self._tokens = Average(prior_tokens, weight=0.05)

    def asked(self, version: int, now: float) -> None:
        """A turn is awaited from now on."""
        self._change(version, +1, now)

    def over(self, version: int, now: float, *, tokens: int | None = None) -> None:
        """A turn is awaited no longer; `tokens` if it was said."""
        self._change(version, -1, now)
        if tokens is not None:
            self._tokens.observe(tokens)

    def expected_tokens(self, version: int, now: float) -> float:
        """Tokens that a frozen version should be expected to have to generate, at any moment like this."""
        requests = max(1.0, self._awaited[version], self._averaged(version, now))
        return requests * self._tokens.value

    @property
    def turn_tokens(self) -> float:
        """Expected tokens of a turn."""
        return self._tokens.value

    def _change(self, version: int, change: int, now: float) -> None:
        self._average[version] = self._averaged(version, now)
        self._since[version] = now
        self._awaited[version] += change
        assert self._awaited[version] >= 0, f"more turns of version {version} ended than were asked for"

    def _averaged(self, version: int, now: float) -> float:
        kept: float = 0.5 ** (max(0.0, now - self._since[version]) / _MEMORY_S)
        return kept * self._average[version] + (1.0 - kept) * self._awaited[version]
