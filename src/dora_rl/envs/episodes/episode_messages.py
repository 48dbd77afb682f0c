"""Messages between a run and the processes that episodes run in. Plain data, no pickle.

An episode is named by a number that is never used twice, so that a word about one that is over can be told
from one about its successor, and is dropped. Operations of a branch (turns and onces) are numbered from 0,
in the order in which the branch's code asked for them. A worker asks for every one of them, always: what
happened before a crash is answered from the journal by whoever is asked. An episode asks for one turn at a
time, whatever its branches do; its onces come in between.

    told                                      said
    OpenWorker                                WorkerReady
    BeginEpisode                              TurnAsked (branch 0, number 0)
    TurnTaken                                 TurnAsked | EpisodeDone | EpisodeBroken
    OnceRecorded, or OnceRun                  OnceAsked
    OnceRecorded                              OnceDone, after OnceRun
    RoleSaid                                  RoleAsked, after OnceRun and before OnceDone
    EndEpisode                                nothing
"""

from typing import Any, Literal

from msgspec import field

from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.core.recipe.episodes import RoleSettings
from dora_rl.core.record import Record
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.envs.data.rows import Row

Truncation = Literal["context", "turns", "deadline"]
"""Why the run gives an episode no further turn: its branch, its turns or its time are full."""
EpisodeFault = Literal["raised", "start limit", "call limit", "wrong result", "process died"]
"""What an environment did that ended its episode without a result."""

# --- told ---------------------------------------------------------------------------------------


class EpisodeTold(Record, frozen=True, tag=True):
    """A message to a process that episodes run in."""


class OpenWorker(EpisodeTold, frozen=True):
    """The first message: which function an episode is, the model's codec, and the limits."""

    function: str
    options: dict[str, Any]
    run: str
    """A name that no other run has: side effects get keys of it."""
    tokenizer: str
    """The directory of the tokenizer."""
    thinking: Literal["keep", "strip"]
    tool_calls: Literal["auto", "hermes", "llama_json"]
    template_options: dict[str, Any]
    """Keywords that the chat template gets beside messages and tools."""
    start_limit_s: float
    call_limit_s: float
    limit_s: float | None = None
    sandbox: Literal["auto", "none"] = "auto"
    """Whether an episode that takes a sandbox gets one, or limits alone."""
    memory_bytes: int | None = None
    """Most memory of the process; None for no limit."""
    rewards: tuple[RewardConfig, ...] = ()
    """Functions that judge episodes which are over."""
    endpoint: EndpointSettings = EndpointSettings()
    roles: dict[str, RoleSettings] = field(default_factory=dict)
    """Whom episodes speak to beside the policy, by name."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Functions named `object:LABEL` by label, pickled: those of the user's that no file has."""


class BeginEpisode(EpisodeTold, frozen=True):
    """Call the function for one member of a group."""

    episode: int
    row: Row
    epoch: int
    member: int
    attempt: int
    seed: int
    is_evaluation: bool = False
    snapshot: bytes | None = None
    """Where it goes on; None for its beginning."""


class TurnTaken(EpisodeTold, frozen=True):
    """The answer to TurnAsked: what the policy drew, or that there will be no further turn."""

    episode: int
    branch: int
    number: int
    tokens: tuple[int, ...]
    """The ids as they were drawn, the stop token included where there was one; none where it is truncated."""
    finish: TurnFinish | Truncation


class OnceRun(EpisodeTold, frozen=True):
    """The answer to OnceAsked where nothing is known: run the effect, and say OnceDone."""

    episode: int
    branch: int
    number: int


class OnceRecorded(EpisodeTold, frozen=True):
    """The value of a once is durable; also the answer to OnceAsked where it was before."""

    episode: int
    branch: int
    number: int
    value: bytes


class RoleSaid(EpisodeTold, frozen=True):
    """The answer to RoleAsked: what the version that plays the role drew, or why there is nothing."""

    episode: int
    branch: int
    number: int
    tokens: tuple[int, ...]
    finish: TurnFinish | Literal["context"]
    problem: str | None = None
    """What went wrong, where the engine refused the turn."""


class EndEpisode(EpisodeTold, frozen=True):
    """Stop an episode and forget it; nothing more is said of it."""

    episode: int


# --- said ---------------------------------------------------------------------------------------


class EpisodeSaid(Record, frozen=True, tag=True):
    """A message from a process that episodes run in."""


class WorkerReady(EpisodeSaid, frozen=True):
    """The process has imported the function and opened the codec."""


class TurnAsked(EpisodeSaid, frozen=True):
    """A branch asks for a turn behind these tokens."""

    episode: int
    branch: int
    number: int
    tokens: tuple[int, ...]
    """Of a new branch its whole context; of a later turn only what the environment appends."""
    is_new: bool
    """Whether the branch begins here; its number says which parent it has, and in which place."""
    max_tokens: int | None = None
    """The most tokens the turn may have, if the episode says so; the recipe's limit holds as well."""
    stop: tuple[str, ...] = ()
    """Strings at which the turn ends, if the episode says so; the recipe's hold as well."""
    reward: float | None = None
    """What `chat.reward` was given for the turn before of this branch; None if nothing."""
    is_trained: bool = True
    """Whether the turns of this branch are trained on; the same for all of them."""


class OnceAsked(EpisodeSaid, frozen=True):
    """A branch is about to have a side effect: is its value known already?"""

    episode: int
    branch: int
    number: int
    key: str


class OnceDone(EpisodeSaid, frozen=True):
    """A side effect was had: this is its value, to be made durable."""

    episode: int
    branch: int
    number: int
    key: str
    value: bytes


class RoleAsked(EpisodeSaid, frozen=True):
    """A role has the word that a version plays: generate its turn, which is nobody's to train on."""

    episode: int
    branch: int
    number: int
    """The branch and number of the side effect that the turn is."""
    role: str
    tokens: tuple[int, ...]
    """The whole context of the role's conversation."""
    max_tokens: int


class EpisodeDone(EpisodeSaid, frozen=True):
    """An episode returned, or was truncated."""

    episode: int
    reward: float | None
    """Its total: what it returned and all that `chat.reward` was given; None where neither is a number."""
    last_rewards: dict[int, float] = field(default_factory=dict)
    """By branch, what `chat.reward` was given for its last turn, which no TurnAsked could carry."""
    values: dict[str, float] = field(default_factory=dict)
    """Values that the episode logged, by name."""
    is_truncated: bool = False
    """Whether the last turn it asked for was refused to it."""


class EpisodeBroken(EpisodeSaid, frozen=True):
    """An episode ended without a result: its environment failed."""

    episode: int
    reason: EpisodeFault
    detail: str
    """The traceback, or in words what was wrong."""


class EpisodeStuck(EpisodeSaid, frozen=True):
    """Code of an episode that is over goes on in the process, which should be replaced in time."""

    episode: int
    detail: str
    """Where the code is: its stack."""


EpisodeCommand = OpenWorker | BeginEpisode | TurnTaken | OnceRun | OnceRecorded | RoleSaid | EndEpisode
EpisodeReply = (
    WorkerReady | TurnAsked | OnceAsked | OnceDone | RoleAsked | EpisodeDone | EpisodeBroken | EpisodeStuck
)
