"""Where rows come from, how a row becomes a prompt, what judges a trajectory, and the processes that do."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import is_place
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Section

ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]


BUILT_IN_ORDERS = ("shuffled", "in_order")

MIXTURE = "mixture"
"""Name of a source that is several tables."""


class TableConfig(Section, frozen=True):
    """One table of rows: where it is and how it is read."""

    name: str
    """A built-in task, a file (.jsonl, .json, .parquet), a directory of such files or one that `datasets`
    saved, `module:object`, `file.py:object`, or a Hugging Face data set (`owner/name`, or `hf:name`)."""
    columns: dict[str, str] = field(default_factory=dict)
    """Names given to columns: `{prompt: question}` reads the column `question` as the prompt."""
    subset: str | None = None
    """Configuration of a Hugging Face data set."""
    split: str = "train"
    """Split of a Hugging Face data set, also of one in a directory."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the built-in task, or of the function that returns rows. `env:NAME` is the value
    of that environment variable, here and in all `options`; in files of the run it stays `env:NAME`."""


class PartConfig(TableConfig, frozen=True):
    """One of several tables that are trained on together."""

    weight: PositiveFloat | None = None
    """Share of the groups that start from this table, relative to the other tables' weights. Left out of all
    of them, every row of all tables comes equally often."""
    label: str | None = None
    """What the column `data_source` says of this table's rows; left out, the table's name without directory
    and ending."""

    @property
    def source_label(self) -> str:
        """The name of this table in columns and metrics."""
        if self.label is not None:
            return self.label
        place, _, attribute = self.name.rpartition(":")
        is_object = place.endswith(".py") or place == "object"
        return attribute if is_object else Path(self.name).stem or self.name


class SourceConfig(TableConfig, frozen=True):
    """The rows trained on: one table, several, or a stream.

    In a recipe also the table's name alone, or a list of tables.
    """

    stream: bool = False
    """Read rows as they are needed, in their own order, instead of all of them before the run: they may be
    without end, and the run ends when they do."""
    parts: tuple[PartConfig, ...] = ()
    """Tables that are trained on together, where `name` is `mixture`. A list in the place of `data.train` is
    written so."""

    def __post_init__(self) -> None:
        if bool(self.parts) != (self.name == MIXTURE):
            raise ConfigError(
                f"data.train.parts go with the name '{MIXTURE}'", hint="give data.train a list of tables"
            )
        if not self.parts:
            return
        usual = TableConfig(name=self.name)
        for key in ("columns", "subset", "split", "options"):
            if getattr(self, key) != getattr(usual, key):
                raise ConfigError(
                    f"data.train.{key} is for one table, and data.train has {len(self.parts)}",
                    hint=f"give '{key}' to those of data.train.parts that need it",
                )
        if self.stream:
            raise ConfigError(
                "several tables cannot be read as one stream",
                hint="let one function yield the rows of all: file.py:function",
            )
        if any(part.weight is None for part in self.parts) and any(part.weight for part in self.parts):
            raise ConfigError("some tables of data.train have a weight, others none", hint="give each one")
        labels = [part.source_label for part in self.parts]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"two tables are called '{label}'", hint="give one of them a 'label'")


class OrderConfig(Section, frozen=True):
    """The order in which rows start."""

    name: str = "shuffled"
    """`shuffled` (every row once an epoch, drawn by the seed), `in_order`, or a class or function of your
    own: `module:object` or `file.py:object`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the order. `in_order` has `epochs`: after so many the rows are exhausted."""
    ahead: Positive | None = None
    """Prompts that are chosen, or read from a stream, before they can start. Left out, a batch for a stream
    and for an order of your own, which may look at rewards; for the others as many as can start at once."""
    time_limit_s: PositiveFloat = 60.0
    """Longest call of your own code, or wait for one row of a stream, in seconds: the process is then ended
    and started again, a few times."""

    def low_water(self, most_at_once: int, batch_groups: int, *, is_stream: bool = False) -> int:
        """Number of queued prompts below which more are asked for."""
        is_known = self.is_built_in and not is_stream
        return self.ahead or (most_at_once if is_known else batch_groups)

    @property
    def is_built_in(self) -> bool:
        """Whether the order is built in: it looks at no reward and runs no code of the user's."""
        return self.name in BUILT_IN_ORDERS

    def __post_init__(self) -> None:
        if not (self.is_built_in or ":" in self.name or "." in self.name):
            raise ConfigError(
                f"there is no order '{self.name}'",
                hint=f"it is {', '.join(BUILT_IN_ORDERS)}, module:object or file.py:object",
            )
        known = ("epochs",) if self.name == "in_order" else ()
        for option in self.options if self.is_built_in else ():
            if option not in known:
                raise ConfigError(
                    f"the order '{self.name}' has no option '{option}'",
                    hint=f"its options: {', '.join(known) or 'none'}",
                )


class DataConfig(Section, frozen=True):
    """The rows trained on, the rows held out, and how a row becomes a prompt."""

    train: SourceConfig
    """Rows that are trained on."""
    held_out: TableConfig | None = None
    """Rows for evaluation; left out, a share of the training rows, or the task's own."""
    held_out_share: ShareBelowOne = 0.0
    """Share of the training rows kept for evaluation, drawn by the seed."""
    order: OrderConfig = field(default_factory=OrderConfig)
    """Which of the rows trained on starts next. In a file also the order's name alone."""
    seed: int = 0
    """Seed of the draw of rows that `held_out_share` keeps for evaluation."""
    max_prompt_tokens: Positive | None = None
    """Most tokens of a prompt; left out, any length, and of a stream twice the longest of its first batch."""
    overlong_prompts: Literal["error", "skip"] = "error"
    """What happens to a prompt above `max_prompt_tokens`: the run does not start, with a stream it ends; or
    the row is left out and counted."""
    wrap_in_chat: bool = False
    """Give a prompt that is a plain string to the chat template, as a user's message."""
    system_prompt: str | None = None
    """System message put before every chat that has none of its own."""
    template_options: dict[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking`."""

    def __post_init__(self) -> None:
        if self.held_out is not None and self.held_out_share:
            raise ConfigError(
                "data.held_out and data.held_out_share both say which rows are held out",
                hint="give one of them",
            )
        if self.train.stream and self.held_out_share:
            raise ConfigError(
                "data.held_out_share cannot be taken of a stream, whose rows are not known before the run",
                hint="name a table of its own: data.held_out",
            )
        if not self.order.is_built_in and (self.train.stream or any(p.weight for p in self.train.parts)):
            what = "a stream" if self.train.stream else "weights"
            raise ConfigError(
                f"data.order = '{self.order.name}' and {what} of data.train both say which row comes next",
                hint="leave data.order out"
                + ("" if self.train.stream else ", or the weights: an order sees the column data_source"),
            )
        if self.train.stream and self.order.options:
            raise ConfigError("a stream has no epochs: it comes once", hint="leave data.order.options out")


class RewardConfig(Section, frozen=True):
    """One reward function and its weight in the sum."""

    function: str
    """Where the reward is: a built-in name, `module:function`, `module.function` or `file.py:function`; of a
    class an object is made, with the options, in each process that scores."""
    weight: float = 1.0
    """Factor of the reward's value in the sum."""
    per: Literal["trajectory", "group"] | None = None
    """Call the function for each trajectory as it ends, with lists of length one, or once for all members of
    a group. Left out, a function of your own is called for a group, for it may compare completions."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments the reward function always gets, beside the columns; of a class, those it is made
    with. `env:NAME` is the value of that environment variable: the way to give a key, which then stands in
    no file."""
    name: str | None = None
    """Name of the reward in metrics; left out, that of the function."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigError(
                f"the weight of reward '{self.function}' is {self.weight}", hint="give a number"
            )

    @property
    def called_per(self) -> Literal["trajectory", "group"]:
        """What the function is called for: built-in ones look at one completion at a time."""
        # A reward model computes a whole group in one batch.
        is_whole = is_place(self.function) or self.function == "reward_model"
        return self.per or ("group" if is_whole else "trajectory")

    @property
    def label(self) -> str:
        """The reward's name in metrics and failures."""
        return self.name or self.function.replace(":", ".").rpartition(".")[2]


class ScoringSettings(Section, frozen=True):
    """The processes that reward functions run in."""

    processes: Positive = 2
    """Number of processes that score."""
    time_limit_s: PositiveFloat = 60.0
    """Longest call of a function, in seconds; a longer one is a failure, its process replaced if need be."""
    start_limit_s: PositiveFloat = 120.0
    """Seconds a process has to import its functions before it is replaced."""
    max_concurrent: Positive = 64
    """Most requests a process works on at a time if one of its functions is asynchronous; otherwise one."""
    retries: Count = 1
    """How often a request is tried again after the process that had it died."""


class ScoringConfig(ScoringSettings, frozen=True, kw_only=True):
    """All the reward functions of a run, and the processes they run in."""

    rewards: tuple[RewardConfig, ...]

    def __post_init__(self) -> None:
        if not self.rewards:
            raise ConfigError(
                "rewards is empty: nothing would judge a trajectory", hint="name a reward function"
            )
        labels = [reward.label for reward in self.rewards]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"two rewards are called '{label}'", hint="give one of them a 'name'")
