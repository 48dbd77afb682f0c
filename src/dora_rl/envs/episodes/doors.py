"""Doors: the URLs and keys by which agents reach chats of episodes, behind one endpoint a process.

The endpoint is opened when the first door is, so that a run without agents listens nowhere.
"""

import asyncio
import secrets
import threading

from msgspec import Struct

from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.envs.endpoint.server import Endpoint
from dora_rl.envs.episodes.agent_turns import AgentTurns
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode import Door, Episode

_COUNTED = ("requests", "branches", "retries", "sampling")
"""What every episode with a door has a value of, also where it is 0."""


class OpenDoors(Struct, eq=False):
    """What is open of one episode."""

    key: str
    names: list[str]


class EpisodeDoors:
    """All doors of a process."""

    def __init__(self, settings: EndpointSettings, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is where requests are answered; doors may be opened from any thread."""
        self._settings = settings
        self._loop = loop
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._open: dict[int, OpenDoors] = {}

    def open(self, episode: Episode, chat: Chat) -> Door:
        """Let an agent in that goes on with a chat of an episode."""
        with self._lock:
            endpoint = self._endpoint = self._endpoint or Endpoint(self._settings, self._loop)
            number, branch = episode.begin.episode, chat.branch.number
            name = f"{number}.{branch}" if branch else f"{number}"
            opened = self._open.setdefault(number, OpenDoors(f"dora-{secrets.token_urlsafe(32)}", []))
            opened.names.append(name)
            for what in _COUNTED:
                episode.values.setdefault(f"endpoint/{what}", 0.0)
            turns = AgentTurns(chat, episode.count)
            endpoint.open(name, turns, key=opened.key)
            return Door(base_url=endpoint.url(name), api_key=opened.key, turns=turns)

    def close(self, episode: Episode) -> None:
        """Let nobody in any more who comes for an episode."""
        opened = self._open.pop(episode.begin.episode, None)
        if opened is not None and self._endpoint is not None:
            for name in opened.names:
                self._endpoint.close(name)

    async def stop(self) -> None:
        """Close the endpoint, if there is one."""
        if self._endpoint is not None:
            await self._endpoint.stop()
