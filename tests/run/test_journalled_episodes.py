"""Episodes of the journal as the trainer takes them: branches, turns, and what each turn gave."""

from dora_rl.core.stream_key import StreamKey
from dora_rl.engines.requests import Sampling
from dora_rl.run.journalled_groups import group_of
from dora_rl.store.journal_records import (
    FinishedGroup,
    JournalledBranch,
    JournalledTrajectory,
    JournalledTurn,
    Response,
    Stretch,
)
from dora_rl.trainer.train_batch import TrainTrajectory, TrainTurn


def response(*parts: tuple[int | None, tuple[int, ...]], first: float = -1.0) -> Response:
    """Tokens of stretches in turn; each drawn one has the next lower logprob."""
    tokens = tuple(token for _, own in parts for token in own)
    starts = [sum(len(own) for _, own in parts[:place]) for place in range(len(parts))]
    num_drawn = sum(len(own) for version, own in parts if version is not None)
    return Response(
        tokens=tokens,
        logprobs=tuple(first - place for place in range(num_drawn)),
        stretches=tuple(
            Stretch(start=start, version=version) for start, (version, _) in zip(starts, parts, strict=True)
        ),
    )


def turn(order: int, reward: float | None = None) -> JournalledTurn:
    return JournalledTurn(finish="stop", order=order, reward=reward)


def taken(**changes: object) -> TrainTrajectory:
    fields: dict[str, object] = {
        "trajectory": 0,
        "group": 0,
        "version": 3,
        "key": StreamKey(seed=0),
        "prompt": (1, 2),
        "response": response((None, (3,)), (3, (4, 5)), (None, (6,)), (3, (7,))),
        "is_truncated": False,
        "is_evaluation": False,
        "reward": 2.0,
        "turns": (turn(0, 0.25), turn(3)),
    }
    whole = JournalledTrajectory(**fields | changes)  # type: ignore[arg-type]
    (member,) = group_of(FinishedGroup(group=0, version=3, members=(whole,)), Sampling()).members
    return member


FORK = JournalledBranch(
    number=9, response=response((None, (1, 2, 4)), (3, (8, 9)), first=-20.0), turns=(turn(1, 0.5),)
)


def test_a_branch_is_a_row_of_its_member_with_the_tokens_drawn_in_it() -> None:
    member = taken(branches=(FORK,))
    assert member.response == (3, 4, 5, 6, 7)
    assert member.is_policy == (False, True, True, False, True)
    assert member.turns == (TrainTurn(order=0, reward=0.25), TrainTurn(order=3))
    (branch,) = member.branches
    assert branch.tokens == (1, 2, 4, 8, 9)
    assert branch.is_policy == (False, False, False, True, True)
    assert branch.turns == (TrainTurn(order=1, reward=0.5),)
    assert member.logprobs == (-1.0, -2.0, -3.0, -20.0, -21.0)
    assert (member.version, member.versions) == (3, ())


def test_an_untrained_branch_is_no_row_and_what_it_gave_counts_for_the_turn_before_it() -> None:
    agent = JournalledBranch(
        number=4, response=response((None, (1,)), (3, (2,))), turns=(turn(2, 4.0),), is_trained=False
    )
    member = taken(branches=(agent, FORK))
    assert len(member.branches) == 1
    assert member.branches[0].turns == (TrainTurn(order=1, reward=4.5),)
    assert len(member.logprobs) == 5


def test_a_turn_that_was_cut_is_the_last() -> None:
    cut = JournalledBranch(number=9, response=FORK.response)
    member = taken(turns=(turn(0, 0.25), turn(1)), branches=(cut,), is_truncated=True)
    assert member.branches[0].turns == (TrainTurn(order=2),)
    assert member.is_truncated


def test_a_branch_in_which_nothing_was_drawn_is_no_row() -> None:
    asked = JournalledBranch(number=9, response=response((None, (1, 2, 3))))
    assert taken(branches=(asked,)).branches == ()


def test_what_is_no_episode_has_no_turns() -> None:
    member = taken(turns=(), response=response((3, (4, 5))))
    assert (member.turns, member.branches, member.is_policy) == ((), (), ())
