"""Where the seconds of a run went, in words."""

from collections.abc import Iterator

from dora_rl.costs.seconds_spent import WAITS, Seconds, SecondsSpent, Spent

_SHOWN = 0.01
"""Least share of the seconds that has a word of its own."""

_NO_LOSS = (Spent.TRAINING, Spent.STARTING, Spent.ENDING)

WORDS = {
    Spent.GENERATING: "generating",
    Spent.EVALUATING: "evaluating",
    Spent.TRAINING: "training",
    Spent.PUBLISHING: "publishing",
    Spent.HANDING_OVER: "handing over",
    Spent.PREFILL: "prefill",
    Spent.RECOMPUTE: "computing again",
    Spent.KV_MOVES: "moving KV",
    Spent.WEIGHT_LOADS: "loading weights",
    Spent.SWITCHING: "changing sides",
    Spent.TRAINER: "waiting for the trainer",
    Spent.BATCH: "waiting for a batch",
    Spent.WINDOW: "waiting for the window",
    Spent.ENVIRONMENT: "waiting for environments",
    Spent.REWARD: "waiting for rewards",
    Spent.PROMPTS: "waiting for prompts",
    Spent.STARTING: "starting",
    Spent.DOWN: "down",
    Spent.ENDING: "ending",
    Spent.OTHER: "other",
}


def seconds_lines(seconds: SecondsSpent) -> Iterator[tuple[str, str]]:
    """Labels and texts about the seconds of instances and trainer, the greatest share first."""
    if seconds.wall_s > 0.0 and seconds.num_instances:
        yield "instances", _shares(seconds.instances, _by_version(seconds))
        yield "trainer", _shares(seconds.trainer)


def seconds_headline(seconds: SecondsSpent) -> str:
    """How much of the time is used, and what else the trainer spends most of it on, in a line."""
    generating = seconds.instances.get(Spent.GENERATING, 0.0) / sum(seconds.instances.values())
    training = seconds.trainer.get(Spent.TRAINING, 0.0) / seconds.wall_s
    text = f"Instances generate {generating:.0%} of the time, the trainer trains {training:.0%}"
    others = {s: amount for s, amount in seconds.trainer.items() if s not in _NO_LOSS}
    spent = max(others, key=lambda each: others[each], default=Spent.OTHER)
    share = others.get(spent, 0.0) / seconds.wall_s
    return f"{text} and spends {share:.0%} {WORDS[spent]}" if share >= _SHOWN else text


def longest_wait(seconds: SecondsSpent) -> tuple[Spent, float]:
    """What the trainer waited for longest, and for how long."""
    return max(((wait, seconds.trainer.get(wait, 0.0)) for wait in WAITS), key=lambda each: each[1])


def behind_words(behind: int) -> str:
    """`newest version`, or how far behind it: `2 behind`."""
    return f"{behind} behind" if behind else "newest version"


def _by_version(seconds: SecondsSpent) -> str:
    total = sum(seconds.instances.values())
    shares = {behind: amount / total for behind, amount in seconds.behind.items()}
    shown = [f"{share:.0%} {behind_words(behind)}" for behind, share in shares.items() if share >= _SHOWN]
    return f" ({', '.join(shown)})" if len(shown) > 1 else ""


def _shares(seconds: Seconds, generating: str = "") -> str:
    total = sum(seconds.values())
    shares = {spent: amount / total for spent, amount in seconds.items()}
    parts = [
        f"{share:.0%} {WORDS[spent]}{generating if spent is Spent.GENERATING else ''}"
        for spent, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= _SHOWN
    ]
    rest = sum(share for share in shares.values() if share < _SHOWN)
    return ", ".join(parts) + (f", {rest:.1%} else" if rest >= 0.0005 else "")
