"""Batches: streaming hand-over closes what a whole batch would have closed, and never paints itself in."""

from random import Random

import pytest

from dora_rl.control.batches import Batches
from dora_rl.control.ledger import Group, Ledger, Phase
from dora_rl.control.window import Verdict, Window
from dora_rl.core.inputs import QueuedPrompt

from .test_window import feasible

PROMPT = QueuedPrompt(epoch=0, row=0, tokens=1)


class Stream:
    """A window, a ledger and batches with a history of random admissions, finishes and takings."""

    def __init__(self, rng: Random, *, streams: bool = True) -> None:
        self.rng = rng
        self.batch = rng.randint(1, 4)
        self.staleness = rng.randint(0, 3)
        self.window = Window(batch_groups=self.batch, max_staleness=self.staleness)
        self.ledger = Ledger(group_size=1)
        self.batches = Batches(self.window, self.ledger, streams=streams)
        self.handed: list[int] = []

    def admit(self) -> None:
        """A group of any live version, as a refill would."""
        oldest = max(0, self.window.oldest_allowed)
        version = self.rng.randint(oldest, self.window.newest)
        if self.window.room(version) > 0 and self.batches.allows(version):
            self.window.admit(version)
            self.ledger.admit(PROMPT, version)

    def finish(self) -> None:
        unfinished = [group for group in self.ledger.groups.values() if not group.is_finished]
        if unfinished:
            group = self.rng.choice(unfinished)
            group.members[0].phase, group.unscored = Phase.SCORED, 0
            self.ledger.finish(group)
            self.window.finish(group.version)

    def close(self) -> None:
        """An unfinished group ends in an outcome."""
        unfinished = [group for group in self.ledger.groups.values() if not group.is_finished]
        if unfinished:
            group = self.rng.choice(unfinished)
            self.ledger.close(group, group.members[0], "filtered")
            self.ledger.forget(group)
            self.window.close(group.version, finished=False)

    def hand_over(self) -> None:
        self.handed += [group.id for group in self.batches.hand_over()]

    def take(self) -> list[Group] | None:
        """Close the batch as soon as the rule for whole batches allows, whatever was handed over."""
        if self.window.verdict() is not Verdict.READY:
            return None
        batch = self.batches.take()
        assert set(self.handed) <= {group.id for group in batch}
        assert len({group.id for group in batch}) == self.batch
        self.handed = []
        return batch

    def end_step(self) -> None:
        if self.rng.random() < 0.2:
            self.batches.give_back()
        else:
            self.ledger.commit()
            self.window.publish(self.window.newest + 1)

    def open_batch_can_hold_what_it_must(self) -> bool:
        """Search: the rest of the open batch and later ones have a place for everyone outside it."""
        oldest = self.window.oldest_allowed
        counts = [0] * (self.staleness + 1)
        for group in self.ledger.groups.values():
            counts[group.version - oldest] += group.id not in self.handed
        return feasible(tuple(counts), self.batch, next_places=self.batch - len(self.handed))


@pytest.mark.parametrize("block", range(4))
def test_a_streamed_batch_can_always_hold_what_it_must(block: int) -> None:
    for seed in range(block * 500, (block + 1) * 500):
        stream = Stream(Random(seed))
        for _ in range(60):
            stream.rng.choice((stream.admit, stream.admit, stream.finish, stream.finish, stream.close))()
            stream.hand_over()
            assert stream.open_batch_can_hold_what_it_must(), f"seed {seed}: {stream.window}"
            if stream.take() is not None:
                stream.end_step()
            stream.window.check()
            stream.batches.check()


def test_a_newer_group_is_not_handed_over_while_older_ones_need_the_place() -> None:
    """Two groups of version 0 at their deadline fill the batch; a finished one of version 1 must wait."""
    stream = Stream(Random(0))
    stream.batch = 2
    window = stream.window = Window(batch_groups=2, max_staleness=1)
    window.taken = window.newest = 1
    stream.batches = Batches(window, stream.ledger, streams=True)
    for version in (0, 0, 1):
        window.admit(version)
        stream.ledger.admit(PROMPT, version)
    newer = stream.ledger.groups[2]
    newer.members[0].phase, newer.unscored = Phase.SCORED, 0
    stream.ledger.finish(newer)
    window.finish(1)
    assert stream.batches.hand_over() == []


def test_a_batch_lost_after_streaming_is_handed_over_once_more_and_only_once() -> None:
    stream = Stream(Random(1))
    stream.batch = 2
    stream.window = Window(batch_groups=2, max_staleness=1)
    stream.batches = Batches(stream.window, stream.ledger, streams=True)
    for _ in range(2):
        stream.window.admit(0)
        stream.ledger.admit(PROMPT, 0)
        stream.finish()
        stream.hand_over()
    assert stream.take() is not None
    stream.batches.give_back()
    assert [group.id for group in stream.batches.hand_over()] == [0, 1]


def test_what_an_idle_trainer_lost_is_handed_over_again() -> None:
    stream = Stream(Random(2))
    stream.window.admit(0)
    stream.ledger.admit(PROMPT, 0)
    stream.finish()
    assert [group.id for group in stream.batches.hand_over()] == [0]
    assert stream.batches.hand_over() == []
    stream.batches.reopen()
    assert [group.id for group in stream.batches.hand_over()] == [0]
