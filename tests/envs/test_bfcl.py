"""BFCL's rows, played in its simulators: its own calls solve them, and nothing less does."""

import ast
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.tasks import Task, load_task

from .scripted_run import play, text

pytest.importorskip("bfcl_eval")
pytest.importorskip("mpmath")

from dora_rl.envs.tasks.bfcl import Offered, Simulators, function_calls


def task(name: str = "base", **options: Any) -> Task:
    return load_task(f"bfcl:{name}", seed=0, options=options)


def as_calls(row: Row) -> list[list[str]]:
    """The row's own calls, turn by turn, as the policy would write them."""
    simulators = Simulators(row.columns)

    def written(call: str) -> str:
        node = ast.parse(call.strip(), mode="eval").body
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        names = list(inspect.signature(simulators._methods[node.func.id]).parameters)
        given = dict(zip(names, map(ast.literal_eval, node.args), strict=False))
        given |= {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
        return f"CALL {node.func.id} {json.dumps(given)}"

    return [[written(call) for call in truth] for truth in row.columns["ground_truth"]]


def solver(turns: list[list[str]]) -> Callable[[str], str]:
    """A policy that makes the calls of each of the user's turns in one answer, then says that it is done."""
    answers = [answer for calls in turns for answer in (["\n".join(calls)] if calls else []) + ["done"]]
    return lambda context: answers[context.count("[assistant]") - 1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["base", "miss_func", "miss_param", "long_context"])
def test_the_rows_own_calls_solve_every_row(name: str) -> None:
    rows = [*task(name).train, *task(name).held_out]
    assert len({row.columns["id"] for row in rows}) == 200
    unsolved = []
    for row in rows:
        end, _ = play(function_calls, solver(as_calls(row)), row=row)
        if end.values != {"solved": 1.0} or end.reward != pytest.approx(1.0):
            unsolved.append((row.columns["id"], end))
    assert unsolved == []


def test_the_first_wrong_turn_ends_the_episode_and_what_was_right_counts() -> None:
    row = next(row for row in task().train if len(row.columns["question"]) == 4)
    calls = as_calls(row)
    end, run = play(function_calls, solver([calls[0], [], *calls[2:]]), row=row)
    assert end.values == {"solved": 0.0}
    assert end.reward == pytest.approx(0.25)
    assert len(run.asked()) == 3

    async def all_or_nothing(chat: Chat, row: Row) -> float:
        return await function_calls(chat, row, partial=False)

    ends = [play(all_or_nothing, solver(made), row=row)[0] for made in (calls, calls[:1] + [[]] * 3)]
    assert [end.reward for end in ends] == [1.0, 0.0]


def test_what_cannot_be_called_is_text() -> None:
    row = task().train[0]
    policy = solver([["CALL fly {}", "CALL cd ("]])
    _, run = play(function_calls, policy, row=row)
    said = text(run.asked()[1].tokens)
    assert "there is no tool 'fly'" in said
    assert "not valid JSON" in said


def test_tools_that_are_missing_come_later_and_types_are_those_of_json() -> None:
    row = task("miss_func").train[0]
    turn, names = next(iter(row.columns["missed_function"].items()))
    tools = Offered(row.columns, is_brief=True)
    offered = {tool["function"]["name"] for tool in tools.schemas}
    assert not offered & set(names)
    tools.add_missed(int(turn))
    assert {tool["function"]["name"] for tool in tools.schemas} == offered | set(names)
    kinds = {
        each["type"]
        for tool in tools.schemas
        for each in tool["function"]["parameters"]["properties"].values()
    }
    assert kinds <= {"string", "number", "integer", "boolean", "array", "object"}


def test_held_out_rows_are_the_same_under_every_name_and_never_trained_on() -> None:
    numbers = [
        {row.columns["id"].rpartition("_")[2] for row in task(name).held_out}
        for name in ("base", "miss_param")
    ]
    assert numbers[0] == numbers[1]
    assert not numbers[0] & {row.columns["id"].rpartition("_")[2] for row in task().train}
    with pytest.raises(UserError, match="bfcl has no rows 'bsae'"):
        task("bsae")
