"""`bfcl:NAME`: the multi-turn rows of the Berkeley Function Calling Leaderboard, with its own simulators.

Rows, tools, simulators and checks are those of the package bfcl-eval. A user says something in each turn of a
row; the policy calls tools until it has nothing more to call. Then the simulators must be in the state in
which the row's own calls leave theirs, and must have answered what these were answered. The first turn that
fails ends the episode, for nothing after it can be right.
"""

import ast
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, load_named, optional_module
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.envs.chat.messages import Message, ToolSchema
from dora_rl.envs.data.rows import read_rows
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.turn import EpisodeTruncated, Turn
from dora_rl.envs.tasks.task import Task

_NAMES = ("base", "miss_func", "miss_param", "long_context")
_NUM_ROWS = 200
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""Names of types in the package's documents that a JSON schema spells otherwise."""
_KEPT = ("question", "initial_config", "involved_classes", "missed_function")
_MAX_CALLS = 20
"""Answers with calls to one of the user's turns; the leaderboard ends a row with more."""


def bfcl(
    *,
    seed: int,
    name: str = "base",
    rows: int | None = None,
    held_out_rows: int = 40,
    partial: bool = True,
    is_brief: bool = False,
) -> Task:
    """The task `bfcl:NAME`: 200 rows, some of them held out by the seed, the same numbers under every name.

    With `partial` a row is worth the share of the user's turns that were right, one after the other;
    otherwise 1 if all were, as on the leaderboard, which is the metric `solved` in any case. `is_brief`
    leaves out of each tool's description what it says of the whole set of tools.
    """
    if name not in _NAMES:
        raise UserError(f"bfcl has no rows '{name}'", hint=did_you_mean(name, list(_NAMES), "it has"))
    if not 0 <= held_out_rows < _NUM_ROWS:
        raise UserError(f"bfcl cannot hold out {held_out_rows} of 200 rows", hint="held_out_rows: 40")
    numbers = list(range(_NUM_ROWS))
    random.Random(f"bfcl {seed}").shuffle(numbers)
    entries = list(_entries(name))
    train = numbers[held_out_rows:][:rows]
    return Task(
        name=f"bfcl:{name}",
        train=_read(entries, sorted(train)),
        held_out=_read(entries, sorted(numbers[:held_out_rows])) if held_out_rows else [],
        rewards=(),
        max_new_tokens=512,
        episode=EpisodeSettings(
            function=f"{__name__}:function_calls",
            options={"partial": partial, "is_brief": is_brief},
            max_turns=64,
            max_context_tokens=16384,
        ),
    )


async def function_calls(chat: Chat, row: Any, *, partial: bool = True, is_brief: bool = False) -> float:
    """Play one row; returns what it is worth, or 0 where turns were rewarded as they were right."""
    entry, truths = row.columns, row.columns["ground_truth"]
    mine, wanted = Simulators(entry), Simulators(entry)
    tools = Offered(entry, is_brief=is_brief)
    answered: list[str] = []
    share = 1 / sum(map(bool, truths))
    is_right = True
    try:
        for number, (said, truth) in enumerate(zip(entry["question"], truths, strict=True)):
            tools.add_missed(number)
            turn = await chat.turn(said or _more_tools(), tools=tools.schemas)
            new = await _answers(chat, turn, tools, mine)
            answered += new or []
            expected = [wanted.truth(call) for call in truth]
            is_right = new is not None and _is_right(mine, wanted, answered, expected, has_called=bool(new))
            if not is_right:
                break
            if partial and truth:
                chat.reward(share)
    except EpisodeTruncated:
        is_right = False
    chat.log_metric("solved", float(is_right))
    return 0.0 if partial else float(is_right)


class Simulators:
    """The simulated services of one row, in a state of their own."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        """Put every service into the state in which the row begins."""
        config = _package("constants.executable_backend_config")
        self.instances: dict[str, Any] = {}
        """The services by the names of their classes."""
        self._methods: dict[str, Any] = {}
        for name in entry["involved_classes"]:
            instance = load_named(f"{config.CLASS_FILE_PATH_MAPPING[name]}:{name}")()
            if name not in config.STATELESS_CLASSES:
                scenario = deepcopy(entry["initial_config"].get(name, {}))
                instance._load_scenario(scenario, long_context=entry["is_long"])
            self.instances[name] = instance
            public = (each for each in dir(instance) if not each.startswith("_"))
            self._methods |= {
                each: getattr(instance, each) for each in public if callable(getattr(instance, each))
            }

    def called(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a service answers to a call, also where it cannot be carried out."""
        try:
            return _as_text(self._methods[name](**arguments))
        except Exception as error:  # whatever a simulator raises is its answer, as on the leaderboard
            return f"Error during execution: {error}"

    def truth(self, call: str) -> str:
        """What a service answers to one of the row's own calls, which is written as Python."""
        try:
            return _as_text(self._value(ast.parse(call.strip(), mode="eval").body))
        except Exception as error:  # as above
            return f"Error during execution: {error}"

    def _value(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return ast.literal_eval(node)
        arguments = [self._value(each) for each in node.args]
        named = {str(each.arg): self._value(each.value) for each in node.keywords}
        return self._methods[node.func.id](*arguments, **named)


class Offered:
    """The tools that the policy has in a row; some rows hold a few back until a later turn."""

    def __init__(self, entry: Mapping[str, Any], *, is_brief: bool) -> None:
        """Describe the tools of all services of the row."""
        described = [tool for name in entry["involved_classes"] for tool in _tools(name, is_brief)]
        self._missed: Mapping[str, Sequence[str]] = entry["missed_function"] or {}
        later = {name for names in self._missed.values() for name in names}
        self._all = {tool["function"]["name"]: tool for tool in described}
        self._names = [name for name in self._all if name not in later]

    @property
    def schemas(self) -> list[ToolSchema]:
        """The tools of the turn, in OpenAI's form."""
        return [self._all[name] for name in self._names]

    def add_missed(self, turn: int) -> None:
        """Offer the tools that were held back until this turn of the user."""
        self._names += self._missed.get(str(turn), ())

    def problem(self, name: str) -> str | None:
        """What is wrong with the name of a tool; None if the row has it."""
        # One that is offered later is carried out too, as on the leaderboard: row 49 of miss_func needs it.
        if name in self._all:
            return None
        return f"there is no tool '{name}'; {did_you_mean(name, self._names, 'there are')}"


def _more_tools() -> str:
    """What the user says where a row has nothing to say: that there are tools which were missing."""
    said: str = _package("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    return said


async def _answers(chat: Chat, turn: Turn, tools: Offered, simulators: Simulators) -> list[str] | None:
    """Carry out what the policy calls until it calls nothing; None if it calls for ever."""
    answered: list[str] = []
    for _ in range(_MAX_CALLS):
        if not turn.tool_calls:
            return answered
        messages: list[Message] = []
        for call in turn.tool_calls:
            problem = call.problem or tools.problem(call.name)
            if problem is None:
                # A power of large numbers may take for ever.
                content = await chat.call(simulators.called, call.name, call.arguments)
                answered.append(content)
            else:
                content = f"error: {problem}"
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content})
        turn = await chat.turn(messages)
    return None


def _is_right(
    mine: Simulators, wanted: Simulators, answered: list[str], expected: list[str], *, has_called: bool
) -> bool:
    """Whether a turn of the user's is right, by the package's own checks of state and answers."""
    if not expected:
        # Here the policy should find out that it cannot help; only what follows is checked.
        return True
    if not has_called:
        return False
    checks = _package("eval_checker.multi_turn_eval.multi_turn_checker")
    in_state = checks.state_checker(mine.instances, wanted.instances)["valid"]
    return bool(in_state and checks.response_checker(answered, expected, 0)["valid"])


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            pass
    return str(value)


@cache
def _tools(name: str, is_brief: bool) -> tuple[ToolSchema, ...]:
    place = _package("constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
    return tuple(_tool(entry, is_brief) for entry in _lines("multi_turn_func_doc", place))


def _tool(entry: Mapping[str, Any], is_brief: bool) -> ToolSchema:
    described = str(entry["description"])
    brief = described.rpartition("Tool description: ")[2]
    parameters = _schema(entry["parameters"])
    named = {"name": entry["name"], "description": brief if is_brief else described, "parameters": parameters}
    return {"type": "function", "function": named}


def _schema(given: Any) -> Any:
    """A schema with the types that JSON knows."""
    if isinstance(given, list):
        return [_schema(each) for each in given]
    if not isinstance(given, dict):
        return given
    schema = {key: _schema(value) for key, value in given.items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = _TYPES.get(kind, kind)
    return schema


def _entries(name: str) -> Iterator[dict[str, Any]]:
    place = f"BFCL_v4_multi_turn_{name}.json"
    truths = {entry["id"]: entry["ground_truth"] for entry in _lines("possible_answer", place)}
    for entry in _lines(place):
        kept = {key: entry.get(key) for key in _KEPT}
        yield {
            **kept,
            "id": entry["id"],
            "ground_truth": truths[entry["id"]],
            "is_long": name == "long_context",
        }


def _read(entries: Sequence[dict[str, Any]], numbers: Sequence[int]) -> list[Any]:
    return read_rows([entries[number] for number in numbers], {}, "bfcl", needs_prompt=False)


def _lines(*place: str) -> list[dict[str, Any]]:
    _package("constants")
    text = files("bfcl_eval").joinpath("data", *place).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _package(part: str) -> Any:
    return optional_module(
        f"bfcl_eval.{part}", needed_for="a task of bfcl", install="--no-deps bfcl-eval mpmath"
    )
