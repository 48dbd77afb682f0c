"""Games of TextArena for one player: what is new since the last answer is shown, the last reward is the
game's.

They draw from the random numbers of the whole process, which they seed when they are reset: so every episode
has these for itself while its game is called.
"""

from typing import Any

from dora_rl.core.named import optional_module
from dora_rl.envs.adapters.gym_environment import GymEpisode
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat

_PLAYER = 0


class TextArenaEpisode:
    """Plays a game of TextArena; an episode."""

    def __init__(self, game: str, *, max_steps: int | None = None) -> None:
        """`game` is its name there, as in `GuessTheNumber-v0`; `max_steps` ends it after so many answers."""
        _package()
        # The game alone, without what its makers put around it for models: a chat says who said what.
        name = game if game.endswith("-raw") else f"{game}-raw"
        self._played = GymEpisode(TextArenaMaker(name), action="text", max_steps=max_steps, swaps_random=True)

    async def __call__(self, chat: Chat, row: Row) -> float:
        """Play one episode; the reward is given with the last turn."""
        return await self._played(chat, row)


class TextArenaMaker:
    """Makes games of one name, in gymnasium's form."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> "TextArenaGame":
        """One game more."""
        return TextArenaGame(_package().make(self._name))


class TextArenaGame:
    """A game of TextArena in gymnasium's form."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin anew with a seed; returns the rules and what there is to see."""
        self._game.reset(num_players=1, seed=seed)
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the player's answer to the game."""
        is_over, info = self._game.step(action)
        if is_over:
            rewards, _ = self._game.close()
            return "", float(rewards[_PLAYER]), True, False, dict(info)
        return self._shown(), 0.0, False, False, dict(info)

    def _shown(self) -> str:
        _, messages = self._game.get_observation()
        return "\n".join(text for sender, text, _ in messages if sender != _PLAYER)


def _package() -> Any:
    return optional_module("textarena", needed_for="a game of TextArena", install="textarena")
