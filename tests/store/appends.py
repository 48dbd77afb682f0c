"""A sequence of appends that follows from nothing but their number, and what a journal then holds.

Append `i` starts group `i` (two members) and, for the group before it, completes the first member and adds
tokens to the second. So after any number of them the whole content of the journal can be told in advance.
"""

from dora_rl.core.decisions import Admit, Start
from dora_rl.core.history import Event
from dora_rl.core.inputs import Tick
from dora_rl.core.recipe import Batch, Recipe
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import AnyPayload, Progress, PromptTokens

RECIPE = Recipe(batch=Batch(groups=1, group_size=2), seed=5)


def start(group: int, member: int, **changes: int) -> Start:
    given: dict[str, int] = {"version": 0, "attempt": 0, "prompt_tokens": 3}
    return Start(
        instance=0, trajectory=2 * group + member, group=group, epoch=0, row=group, member=member,
        **(given | changes))  # fmt: skip


def prompt(group: int) -> PromptTokens:
    return PromptTokens(group=group, tokens=(group, 1, 2))


def admission(group: int) -> Event:
    decisions = [Admit(group=group, version=0, epoch=0, row=group), start(group, 0), start(group, 1)]
    return Tick(at=float(group)), [*decisions]


def progress(
    trajectory: int, tokens: int, *, first: int = 0, attempt: int = 0, is_last: bool = False
) -> Progress:
    return Progress(
        trajectory=trajectory,
        attempt=attempt,
        start=first,
        tokens=tuple(range(trajectory, trajectory + tokens)),
        version=0,
        logprobs=(-0.5,) * tokens,
        is_last=is_last,
    )


def completed(trajectory: int, num_tokens: int, *, attempt: int = 0) -> Progress:
    """The end of a trajectory all of whose tokens are recorded."""
    return Progress(
        trajectory=trajectory, attempt=attempt, start=num_tokens, tokens=(), version=None, is_last=True
    )


def num_tokens(trajectory: int) -> int:
    """From a few to more than a page of the file holds."""
    return 1 + trajectory * 977 % 3000


def nth(i: int) -> tuple[list[Event], list[AnyPayload]]:
    payloads: list[AnyPayload] = [prompt(i)]
    if i:
        first, second = 2 * (i - 1), 2 * (i - 1) + 1
        payloads.append(progress(first, num_tokens(first), is_last=True))
        payloads.append(progress(second, num_tokens(second)))
    return [admission(i)], payloads


def write(journal: Journal, count: int) -> None:
    """The next `count` appends."""
    for i in range(journal.num_inputs, journal.num_inputs + count):
        journal.append(*nth(i))


def check(journal: Journal, count: int) -> None:
    """The journal holds exactly the first `count` appends."""
    assert journal.num_inputs == count
    assert list(journal.events()) == [event for i in range(count) for event in nth(i)[0]]
    expected = {t: progress(t, num_tokens(t)).tokens for t in range(2 * max(0, count - 1))}
    whole = {t.trajectory: t.response.tokens for t in journal.unscored()}
    assert whole == {t: tokens for t, tokens in expected.items() if t % 2 == 0}
    partial = {t.trajectory: t.response.tokens for t in journal.unfinished()}
    newest = {2 * count - 2: (), 2 * count - 1: ()} if count else {}
    assert partial == {t: tokens for t, tokens in expected.items() if t % 2} | newest
    prompts = {t.group: t.prompt for t in journal.unfinished()}
    assert prompts == {group: prompt(group).tokens for group in range(count)}
    assert journal._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
