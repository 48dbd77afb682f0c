"""What the result of a run means, in words. Reads numbers; decides nothing."""

from collections.abc import Mapping
from typing import Protocol

from dora_rl.costs.seconds_spent import SecondsSpent, Spent
from dora_rl.observe.seconds_words import longest_wait
from dora_rl.sim.simulated_run import Result

_NOTICEABLE = 0.005
_BUSY = 0.05
"""Share of idle time below which a side is the bottleneck."""


class BusyShares(Protocol):
    """How busy trainer and instances were, in a simulated run or a live one."""

    @property
    def trainer_idle_fraction(self) -> float: ...

    @property
    def instance_idle_fraction(self) -> float: ...

    @property
    def max_staleness(self) -> int: ...

    @property
    def elastic_gpus(self) -> int: ...

    @property
    def gpus(self) -> int: ...

    @property
    def window_stall_s(self) -> float: ...

    @property
    def starved_s(self) -> float: ...


SKIP_WORDS = {
    "prompts": "no prompt was queued",
    "steps": "the last steps needed no more groups",
    "window": "the staleness bound",
    "schedule": "the schedule's own rule",
    "target": "enough groups were active",
    "room": "no instance had room for it",
    "publish": "groups waited for the next version",
    "environments": "no environment was ready",
}
"""Why a version started no group, by the reason that was recorded."""


def staleness_words(mean: float, least: float | None, *, greatest: int, allowed: int) -> str:
    """The staleness of what was trained on: its mean beside the least possible, the greatest, the bound."""
    beside = f" ({least:.2f} is the least possible)" if least is not None else ""
    if greatest > allowed:
        return f"mean {mean:.2f}{beside}, greatest {greatest}: {allowed} bounds only how many groups start"
    return f"mean {mean:.2f}{beside}, greatest {greatest} of {allowed} allowed"


def limit_words(result: Result) -> str:
    """How near a simulated step comes to the fastest there could be."""
    if result.limit_step_time_s is None:
        return "and no limit to compare with: it counts every trajectory, and redundant groups are aborted"
    return f"{result.share_of_limit:.1%} of the zero-bubble limit ({result.limit_s:,.1f} s)"


def bottleneck(
    result: BusyShares,
    *,
    seconds: SecondsSpent | None = None,
    is_on_cpus: bool = False,
    tried: Mapping[str, float] | None = None,
) -> str:
    """Which side holds a step up, and what would help, in a sentence.

    `seconds` say whether the trainer waits for rewards, environments or prompts rather than for generation.
    `tried` are changes of the step time, as shares, that were found with more of something; where something
    was tried, the words follow the outcome.
    """
    tried = tried or {}
    trainer, instances = result.trainer_idle_fraction, result.instance_idle_fraction
    if trainer < _BUSY:
        return f"the trainer: it is busy {1 - trainer:.0%} of the time, so only faster training would help"
    if seconds is not None and (outside := _outside(seconds)):
        return outside
    if result.max_staleness == 0:
        return f"the tail: {trainer:.0%} of a step everybody waits for the longest trajectories of the batch"
    if result.elastic_gpus == result.gpus:
        return (
            f"taking turns: devices train {1 - trainer:.0%} of the time and generate for the rest, less what "
            "changing sides and nearly empty instances take"
        )
    if result.window_stall_s > result.starved_s:
        return (
            f"stragglers: the trainer waits {trainer:.0%} of the time, mostly for trajectories "
            f"about to miss their deadline; a greater max_staleness {_would_help(tried.get('max_staleness'))}"
        )
    if instances < 4 * _BUSY:
        more = "more instances, on more cores," if is_on_cpus else "more rollout GPUs"
        return (
            f"generation: instances are busy {1 - instances:.0%} of the time and the trainer waits "
            f"{trainer:.0%}; {more} {_would_help(tried.get('rollout_gpus'))}"
        )
    return (
        f"waiting: the trainer idles {trainer:.0%} and the instances {instances:.0%} of the time; "
        f"starting new work earlier, or a greater active_groups, {_would_help(tried.get('active_groups'))}"
    )


_OUTSIDE = {
    Spent.REWARD: "rewards: the trainer waits {share} of the time for nothing else; faster reward functions, "
    "or more scoring.processes, would help",
    Spent.ENVIRONMENT: "environments: the trainer waits {share} of the time for nothing else; faster ones, "
    "or a greater active_groups, would help",
    Spent.PROMPTS: "prompts: the trainer waits {share} of the time for the source to offer some",
}


def _outside(seconds: SecondsSpent) -> str | None:
    """The sentence about a wait that is longer than that for generation; None where that is longest."""
    longest, waited_s = longest_wait(seconds)
    share = waited_s / seconds.wall_s if seconds.wall_s else 0.0
    return _OUTSIDE[longest].format(share=f"{share:.0%}") if longest in _OUTSIDE and share > _BUSY else None


def _would_help(change: float | None) -> str:
    if change is None:
        return "would help"
    if abs(change) < _NOTICEABLE:
        return "changes nothing when tried"
    return f"{'takes' if change < 0 else 'adds'} {abs(change):.1%} of the step time when tried"


def all_clear(result: Result) -> str:
    """How the laws held in a simulated run, in a sentence, counted from outside of control."""
    broken = [
        f"{count:,} {what}"
        for count, what in (
            (result.lost_trajectories, "lost"),
            (result.duplicated_trajectories, "trained on twice"),
            (result.mixed_version_trajectories, "of more than one version"),
        )
        if count
    ]
    trained = f"{result.trained_trajectories:,} trajectories trained on"
    if broken:
        return f"{trained}; {', '.join(broken)}"
    return f"{trained}: none lost, none twice, none of more than one version, none older than allowed"


def overlong(num_prompts: int, num_left_out: int, max_tokens: int | None, *, what: str = "prompts") -> str:
    """The sentence `2 of 10 prompts are longer than 512 tokens and were left out`."""
    verb, were = ("is", "was") if num_left_out == 1 else ("are", "were")
    limit = "the limit" if max_tokens is None else f"{max_tokens:,} tokens"
    return f"{num_left_out:,} of {num_prompts:,} {what} {verb} longer than {limit} and {were} left out"


def count(number: int, noun: str) -> str:
    """A number and its noun: `1 group`, `2 groups`, `2 processes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"
