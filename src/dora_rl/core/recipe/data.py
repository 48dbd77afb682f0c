"""Where rows come from, and how a row becomes a prompt."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Positive, Section

ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]


class SourceConfig(Section, frozen=True):
    """One table of rows."""

    name: str
    """A built-in task, a file (.jsonl, .json, .parquet), `module:object`, `file.py:object`, or a Hugging Face
    data set (`owner/name`, or `hf:name`)."""
    columns: dict[str, str] = field(default_factory=dict)
    """Names given to columns: `{prompt: question}` reads the column `question` as the prompt."""
    subset: str | None = None
    """Configuration of a Hugging Face data set."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    options: dict[str, Any] = field(default_factory=dict)
    """What a built-in task, or a function that returns rows, is called with."""


class DataConfig(Section, frozen=True):
    """The rows trained on, the rows held out, and how a row becomes a prompt."""

    train: SourceConfig
    held_out: SourceConfig | None = None
    """Rows for evaluation; left out, a share of the training rows, or the task's own."""
    held_out_share: ShareBelowOne = 0.0
    """Share of the training rows kept for evaluation, drawn by the seed."""
    seed: int = 0
    max_prompt_tokens: Positive | None = None
    """No prompt is longer."""
    overlong_prompts: Literal["error", "skip"] = "error"
    """What happens to one that is: the run does not start, or the row is left out and counted."""
    wrap_in_chat: bool = False
    """Give a prompt that is a plain string to the chat template, as a user's message."""
    system_prompt: str | None = None
    """Put before every chat that has no system message of its own."""
    template_options: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking`."""

    def __post_init__(self) -> None:
        if self.held_out is not None and self.held_out_share:
            raise ConfigError(
                "data.held_out and data.held_out_share both say which rows are held out",
                hint="give one of them",
            )
