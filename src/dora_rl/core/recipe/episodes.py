"""Episodes: what a member of a group does between its turns, how long it may take, and whom it speaks to."""

from typing import Any, Literal

from msgspec import field

from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Section


class EpisodeSettings(Section, frozen=True):
    """Several turns with an environment, in the place of one response with a reward."""

    function: str = ""
    """The episode: `module:function` or `file.py:function`. It is called with a chat and a row for every
    member of a group, awaits turns, and returns the reward. Built in are `environment` (TRL's environment
    classes), `gym` (reset and step) and `mcp` (tool servers), whose options name what is played. Left out,
    the episode of the task that the rows come from, with what the other keys change."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments the episode always gets; of a class, those it is made with. `env:NAME` is the value
    of that environment variable."""
    processes: Positive = 2
    """Number of processes that episodes run in."""
    per_process: Positive | None = None
    """Most episodes at a time in a process, so that `processes` times as many are open at most. 1 gives each
    a process of its own: code that crashes or blocks costs no other episode anything."""
    memory_bytes: Positive | None = None
    """Most memory of a process that episodes run in; code that would take more gets a MemoryError."""
    max_open: Positive | None = None
    """Most episodes at a time, running or ready to start; left out, as many as groups can be active."""
    ahead: Positive | None = None
    """Groups whose environments are reset before they can start; left out, a batch."""
    max_turns: Positive = 16
    """Most turns of an episode, over all its branches; one that would take more is truncated."""
    max_context_tokens: Positive = 2048
    """Most tokens of a branch, prompt and answers together; an episode that would need more is truncated."""
    start_limit_s: PositiveFloat = 60.0
    """Longest time from the start of an episode to its first turn, in seconds."""
    call_limit_s: PositiveFloat = 60.0
    """Longest time from the end of a turn to the next, or to the end of the episode, in seconds."""
    limit_s: PositiveFloat | None = None
    """Longest time of an episode beside its turns, in seconds; left out, only the staleness bound limits
    it."""
    thinking: Literal["keep", "strip"] = "keep"
    """Whether what a model thought stays in its context; where it is stripped at a user's next message, a new
    branch begins there."""
    tool_calls: Literal["auto", "hermes", "llama_json"] = "auto"
    """How the model writes a tool call; `auto` looks at its chat template."""
    sandbox: Literal["auto", "none"] = "auto"
    """Where code that the model writes runs: `auto`, in a sandbox, and the run is refused where the system
    allows none; `none`, with the rights of whoever runs this, under limits alone."""
    endpoint: EndpointSettings = EndpointSettings()

    @property
    def most_open(self) -> int | None:
        """Most episodes at a time, by `max_open` and by what the processes hold; None for no limit."""
        held = None if self.per_process is None else self.processes * self.per_process
        known = [each for each in (self.max_open, held) if each is not None]
        return min(known, default=None)


class RoleSettings(Section, frozen=True):
    """Somebody whom episodes speak to and who is not trained, such as a user who is played by a model."""

    url: str
    """Address of an endpoint that speaks OpenAI's chat completions, up to its `/v1`."""
    model: str
    """The model that is asked for there."""
    api_key: str | None = None
    """The key of the endpoint, as `env:NAME`: the value of that environment variable."""
    max_tokens: Positive = 512
    """Most tokens of a turn, where the episode does not say."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keys of every request, such as `temperature`. `env:NAME` is the value of that environment
    variable."""
    concurrent: Positive = 64
    """Most turns that a process of episodes asks for at the same time."""
    retries: Count = 4
    """How often a turn is asked for again where the endpoint is busy or cannot be reached."""
    time_limit_s: PositiveFloat = 30.0
    """Longest wait for one answer, in seconds; `episode.call_limit_s` holds for all tries together."""
