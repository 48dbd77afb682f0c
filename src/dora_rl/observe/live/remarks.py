"""What is reported at once when it happens: rewards that fail, workers that die, checkpoints that
are damaged, replays that differ.

Pure: an input and what a Follower has counted in, lines out. What happens often is reported less and less
often.
"""

from collections.abc import Iterator

from dora_rl.core.inputs import CheckpointDamaged, Fault, Input, Replayed, Scored
from dora_rl.observe.live.event_facts import FailureFacts, FaultFacts
from dora_rl.observe.live.follower import Follower

_TOLD_FAULTS = 10


def remarks(event: Input, follower: Follower, rewards_log: str) -> Iterator[str]:
    """The lines about one input, which the follower has taken in already."""
    match event:
        case Scored(failures=failures):
            for failure in failures:
                facts = follower.failures[failure.function, failure.reason]
                if _is_round(facts.count):
                    yield failure_line(facts, failure.detail, rewards_log)
        case Fault():
            fault = follower.faults[event.worker]
            if fault.count <= _TOLD_FAULTS or _is_round(fault.count):
                yield fault_line(fault, is_restarted=event.is_restarted)
        case CheckpointDamaged():
            yield f"{event.problem}; training goes on from step {event.version} instead"
        case Replayed(num_different=different) if different:
            yield (
                f"step {event.batch + 1} was trained again after a restart: {different:,} values differ "
                "from those that were published"
            )


def failure_line(facts: FailureFacts, detail: str, rewards_log: str) -> str:
    """A line about a failed reward: which function, how, how often, and where more is written."""
    so_far = f"{facts.count:,} so far" if facts.count > 1 else "the first time"
    return f"{facts.name}: {detail} ({so_far}; see {rewards_log})"


def fault_line(facts: FaultFacts, *, is_restarted: bool) -> str:
    """A line about a worker that died: which, why, and how often so far."""
    times = "1 time" if facts.count == 1 else f"{facts.count:,} times"
    then = f"started again, {times} so far" if is_restarted else f"gave up after {times}"
    return f"{facts.worker}: {facts.last_reason}; {then}"


def _is_round(count: int) -> bool:
    """Whether a count is 1, 10, 100 and so on."""
    return str(count).strip("0") == "1"
