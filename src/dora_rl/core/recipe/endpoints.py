"""The endpoint that agents reach an episode by: where it listens, and what a client may do."""

from dora_rl.core.recipe.section import Positive, PositiveFloat, Section


class EndpointSettings(Section, frozen=True):
    """The HTTP endpoint for agents that know OpenAI's interface only; opened when an episode asks for it."""

    host: str = "127.0.0.1"
    """Address that it listens on. Any other than this machine's own lets others try keys."""
    public_host: str | None = None
    """Name under which agents on other machines reach it; left out, `host`."""
    max_body_bytes: Positive = 8 << 20
    """Most bytes of a request; a larger one is refused with 413."""
    requests_per_s: PositiveFloat = 50.0
    """Requests a second of an episode; more are refused with 429, which clients try again."""
    requests_at_once: Positive = 64
    """Requests of an episode that may be open at once; more are refused with 429."""
    client_limit_s: PositiveFloat = 30.0
    """Longest time that a client may take to send a request, or to read its answer, in seconds."""
