"""How tokens are drawn, when a response ends, and the sizes of an engine."""

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Section
from dora_rl.core.record import Record


class Sampling(Record, frozen=True):
    """The distribution that tokens are drawn from."""

    temperature: float = 1.0
    """Temperature tokens are drawn at. Zero takes the likeliest; log-probabilities are then those at
    temperature 1."""
    top_k: int | None = None
    """Keep only so many of the likeliest tokens; left out, all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to and including the one that reaches this mass."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature {self.temperature} is not a finite number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k {self.top_k} keeps no token", hint="leave it out to keep all")
        if not (0 < self.top_p <= 1 and 0 <= self.min_p <= 1):
            raise ConfigError(f"top_p {self.top_p} must be in (0, 1] and min_p {self.min_p} in [0, 1]")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken instead of a draw."""
        return self.temperature == 0

    @property
    def is_cut(self) -> bool:
        """Whether top_k, top_p or min_p may exclude tokens from the draw."""
        return not self.is_greedy and (self.top_k is not None or self.top_p < 1 or self.min_p > 0)


class ResponseSettings(Section, frozen=True):
    """When a response ends, besides the tokens with which the model ends it."""

    max_new_tokens: Positive | None = None
    """Most tokens of a response, which is cut there; left out, what the built-in task needs."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a response where they appear."""

    def __post_init__(self) -> None:
        if "" in self.stop_strings:
            raise ConfigError(
                "response.stop_strings has an empty string, which would end every response at once",
                hint="leave it out",
            )


class EngineSettings(Section, frozen=True):
    """The rollout engine of an instance, beside what `cluster` sets: slots, versions, share of the memory."""

    kind: str = "auto"
    """The engine: `native`; `transformers`, for models that the native decoder does not know; `auto`, the one
    of the two that fits `trainer.model`; `vllm`; or one of your own, `module:object` or `file.py:object`."""
    kv_tokens: Positive | None = None
    """Tokens of KV; left out, every slot that the run can fill has room for the longest sequence, in whole
    blocks and with what control keeps free, memory permitting."""
    host_kv_tokens: Count | None = None
    """Tokens of KV that may wait in host memory, without which they are computed again; left out, a quarter
    of the KV where requests can move between instances or, on GPUs, wait for environments, else none."""
    block_size: Positive = 32
    """Tokens of KV in a block, the unit of its allocation."""
    step_tokens: Positive = 512
    """Most tokens of one engine step: decode first, the rest goes to prefill in chunks."""
    steps_ahead: Count | None = None
    """Steps launched before the result of an earlier one is read; left out, one on GPUs, none on CPUs."""
    batch_invariant: bool = False
    """Make tokens and logprobs bitwise independent of everything but the request and its version."""
    guessed_tokens: Count = 0
    """Most tokens guessed ahead for a request while at most 16 of its version decode, from other texts of its
    prompt; only what is then drawn is kept, so tokens do not change, but come sooner where texts repeat."""
    report_every_s: PositiveFloat = 1.0
    """Seconds between an instance's reports of its load and of the tokens drawn since."""
