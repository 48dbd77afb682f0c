"""Tools of an MCP server: called by the policy, errors as text, a server that goes is a failure."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.adapters.mcp_tools import McpEpisode, _server, from_mcp
from dora_rl.envs.data.rows import Row

from .scripted_run import ScriptedRun, begin, play, text

pytest.importorskip("mcp")
# Processes of a server that ended without a word close their pipes when they are collected.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]

SERVER = str(Path(__file__).with_name("mcp_server.py"))
ROW = Row(row=0, prompt="Count. ", columns={"goal": 5})


def episode(**options: Any) -> McpEpisode:
    return from_mcp(SERVER, reset_tool="begin", reward_tool="score", **options)


def saying(*answers: str) -> Any:
    return lambda context: answers[context.count("[assistant]") - 1]


def test_a_servers_tools_are_called_and_it_says_what_that_was_worth() -> None:
    end, run = play(episode(), saying('CALL add {"n": 2}', 'CALL add {"n": 3}', "done"), row=ROW)
    assert end.reward == 1.0
    said = [text(word.tokens) for word in run.asked()]
    assert said[0] == "[tools]add[user]Count. Reach 5.[assistant]"
    assert re.match(r"\[tool\]total 5, process \d+\[assistant\]", said[2])


def test_what_is_wrong_with_a_call_is_text() -> None:
    policy = saying('CALL add {"n": 101}', 'CALL add {"m": 1}', "CALL sub {}", "CALL score {}", "done")
    end, run = play(episode(tools=["add"]), policy, row=ROW)
    assert end.reward == 0.0
    said = [text(word.tokens) for word in run.asked()[1:]]
    assert all(each.startswith("[tool]error: ") for each in said)
    assert "no tool 'sub'" in said[2]
    assert "no tool 'score'" in said[3], "what judges is not the policy's to call"


def test_a_server_is_an_episodes_own_or_shared_by_a_process() -> None:
    def process(run: Any) -> str:
        found = re.search(r"process (\d+)", text(run.asked()[1].tokens))
        assert found is not None
        return found[1]

    runs = [play(episode(), saying('CALL add {"n": 1}', "done"), row=ROW)[1] for _ in range(2)]
    assert process(runs[0]) != process(runs[1])

    async def both() -> list[Any]:
        # The second is answered as the first was, and asks the same only if the same process answers it.
        shared = ScriptedRun(saying('CALL add {"n": 5}', "done"))
        runner = shared.runner(episode(per="process"))
        ends = []
        for number in (0, 1):
            runner.tell(begin(number, row=ROW))
            ends.append(await shared.end_of(number))
        return ends

    assert [end.reward for end in asyncio.run(both())] == [1.0, 1.0]


def test_a_server_that_goes_is_a_failure_of_the_episode() -> None:
    end, _ = play(episode(), saying('CALL add {"n": -1}', "done"), row=ROW)
    assert (end.reason, "server has gone" in end.detail) == ("raised", True)
    end, _ = play(from_mcp("false"), saying("done"), row=ROW)
    assert (end.reason, "does not answer" in end.detail) == ("raised", True)


def test_servers_are_files_commands_and_urls() -> None:
    assert _server("server.py")["command"][1:] == ["server.py"]
    assert _server("npx -y thing") == {"command": ["npx", "-y", "thing"]}
    assert _server("http://host/mcp") == {"url": "http://host/mcp"}
    with pytest.raises(UserError, match="no 'comand'"):
        _server({"comand": "x"})
    with pytest.raises(UserError, match="without a command"):
        _server({"env": {}})
