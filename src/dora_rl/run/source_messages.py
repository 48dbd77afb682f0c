"""What the process of a source of prompts, or of a stream's reader, is told and says."""

from msgspec import field

from dora_rl.core.recipe.data import DataConfig, OrderConfig
from dora_rl.envs.prompt_source import GroupScore
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.launch.messages import Alive as Alive
from dora_rl.launch.messages import Broken as Broken
from dora_rl.launch.messages import Message
from dora_rl.launch.messages import Stop as Stop


class RowsOffered(Message, frozen=True):
    """Tell a prompt source that these rows will be started, in this order."""

    rows: tuple[int, ...]


class GroupScored(Message, frozen=True):
    """Tell a prompt source what came of a group."""

    score: GroupScore


SourceTold = RowsOffered | GroupScored


class OpenSource(Message, frozen=True):
    """The first message to a prompt source: which one, over which rows, and everything told to it before."""

    order: OrderConfig
    prompts: str
    """The file of the run's prompts."""
    seed: int
    told: tuple[SourceTold, ...] = ()
    objects: dict[str, bytes] = field(default_factory=dict)
    """The user's own objects for the names `object:LABEL` in the recipe: cloudpickle bytes by label."""

    @property
    def name(self) -> str:
        """The name of the user's code."""
        return self.order.name


class OpenStream(Message, frozen=True):
    """The first message to the reader of a stream: which one, and where it goes on."""

    data: DataConfig
    model: str
    """The directory of the model whose tokenizer makes prompts of the rows."""
    place: int
    """Place in the stream of the first row to read."""
    columns: tuple[str, ...]
    """Columns that rows have: one that a row lacks is None."""
    told: tuple[SourceTold, ...] = ()
    """Everything a stream that hears scores was told before; rows are named by their places."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """The user's own objects for the names `object:LABEL` in the recipe: cloudpickle bytes by label."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.data.train.name


class ChooseRows(Message, frozen=True):
    """Ask a prompt source to choose up to this many rows, or the reader of a stream to read them."""

    count: int


SourceCommand = OpenSource | OpenStream | ChooseRows | RowsOffered | GroupScored | Stop


class SourceReady(Message, frozen=True):
    """The prompt source is imported and has been told everything that happened before."""

    hears_scores: bool = True
    """Whether the source wants to know what came of its rows."""


class RowsChosen(Message, frozen=True):
    """The rows a prompt source chose: empty for none at the moment, None for never any again."""

    rows: tuple[int, ...] | None


class RowRead(Message, frozen=True):
    """One row of a stream, ready to start; said as soon as it is read."""

    prompt: TokenizedPrompt


class RowsRead(Message, frozen=True):
    """A reader of a stream has read what it was asked for, or as much as there is at the moment."""

    is_ended: bool = False
    """Whether the stream has no more rows."""
    is_dry: bool = False
    """Whether the stream has no row at the moment."""


SourceWord = Broken | Alive | SourceReady | RowsChosen | RowRead | RowsRead
