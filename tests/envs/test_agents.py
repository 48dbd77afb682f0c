"""Agents as episodes: functions and programs, what they give, how they fail, and that they are ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from dora_rl.core.errors import UserError
from dora_rl.envs.adapters.agent import AgentEpisode, from_agent
from dora_rl.envs.episodes.episode_function import load_episode
from dora_rl.envs.episodes.episode_messages import EpisodeBroken, EpisodeDone
from dora_rl.envs.episodes.limits import EpisodeLimits

from .scripted_run import ScriptedRun, begin

PROGRAM = """
import json, os, sys, urllib.request
row = json.load(sys.stdin)
assert row == json.load(open(os.environ["DORA_ROW_FILE"]))
assert os.environ["OPENAI_API_KEY"] not in " ".join(sys.argv)
def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
messages = [{"role": "user", "content": row["prompt"]}]
messages.append(ask(messages))
"""


def ask(base_url: str, api_key: str, said: str) -> str:
    """One question, as a program asks it that knows no library."""
    body = json.dumps({"messages": [{"role": "user", "content": said}]}).encode()
    request = urllib.request.Request(
        f"{base_url}/chat/completions", body, {"Authorization": f"Bearer {api_key}"}
    )
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def play(
    episode: Any, policy: Any = lambda context: "42", *, run: ScriptedRun | None = None, **choices: Any
) -> Any:
    """The end of an episode that an agent plays."""
    run = run or ScriptedRun(policy)

    async def played() -> Any:
        runner = run.runner(episode, **choices)
        runner.tell(begin())
        try:
            end = await run.end_of(0)
            while runner._tasks:
                await asyncio.sleep(0.01)
            return end
        finally:
            await runner.stop()

    try:
        return asyncio.run(played())
    finally:
        if isinstance(episode, AgentEpisode):
            episode.close()


def program(tmp_path: Path, code: str) -> list[str]:
    file = tmp_path / "agent.py"
    file.write_text(PROGRAM + code)
    return [sys.executable, "-I", "-S", str(file)]


def test_a_function_that_blocks_is_given_the_way_to_the_policy_and_gives_the_reward() -> None:
    def solve(row: Any, base_url: str, api_key: str) -> float:
        return float(ask(base_url, api_key, row.prompt) == row.columns["answer"])

    assert play(from_agent(solve)).reward == 1.0


def test_an_async_function_gives_what_a_reward_function_judges() -> None:
    async def solve(base_url: str, api_key: str, model: str) -> str:
        assert model == "policy"
        return await asyncio.to_thread(ask, base_url, api_key, "hello")

    def judge(row: Any, result: str, messages: Any, conversations: Any, log_metric: Any) -> float:
        assert [message["content"] for message in messages] == ["hello", "42"]
        assert conversations == [messages]
        log_metric("length", len(result))
        return 0.25 if result == row.columns["answer"] else 0.0

    end = play(from_agent(solve, reward=judge))
    assert (end.reward, end.values["length"]) == (0.25, 2.0)


def test_a_program_gets_the_row_and_its_last_line_is_its_result(tmp_path: Path) -> None:
    command = program(tmp_path, "print('thinking'); print(json.dumps({'reward': 0.5}))")
    assert play(from_agent(command)).reward == 0.5
    line = " ".join(f"'{each}'" for each in command)
    assert play(from_agent(line, reward=lambda result, output: len(output.split()) / 4)).reward == 0.75


def test_an_agent_that_fails_is_a_failed_environment_that_says_why(tmp_path: Path) -> None:
    end = play(from_agent(program(tmp_path, "sys.exit('no luck')")))
    assert isinstance(end, EpisodeBroken)
    assert (end.reason, "ended with code 1" in end.detail, "no luck" in end.detail) == ("raised", True, True)
    end = play(from_agent(["/no/such/program"]))
    assert "/no/such/program" in end.detail
    end = play(from_agent("true", directory="/no/such/place"))
    assert "cannot be started in /no/such/place: No such file or directory" in end.detail

    def broken(base_url: str) -> float:
        raise KeyError("door")

    assert "KeyError: 'door'" in play(from_agent(broken)).detail


def test_an_agent_that_fails_for_want_of_turns_is_truncated_and_judged(tmp_path: Path) -> None:
    again = "messages.append({'role': 'user', 'content': 'more'}); ask(messages)"
    command = program(tmp_path, again)
    end = play(
        from_agent(command, reward=lambda messages, is_truncated: len(messages) / 4 if is_truncated else 1),
        lambda context: "!turns" if "more" in context else "42",
    )
    assert isinstance(end, EpisodeDone), end
    assert (end.reward, end.is_truncated) == (0.5, True)


def test_a_program_that_writes_without_end_is_listened_to_and_cut(tmp_path: Path) -> None:
    command = program(tmp_path, "print('x' * 5_000_000); print(0.5)")
    end = play(from_agent(command, reward=lambda output, result: result + (len(output) <= 1 << 20)))
    assert end.reward == 1.5


def test_a_program_in_a_sandbox_reaches_the_policy_and_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    command = program(
        tmp_path, f"print(json.dumps({{'reward': 1.0 - os.path.exists('{secret}'), 'said': messages[-1]}}))"
    )
    try:
        episode = from_agent(command, sandboxed=True, files=[command[-1]])
        end = play(episode)
    except UserError as error:
        pytest.skip(error.message)
    assert end.reward == 1.0


CHILD = (
    "import subprocess; child = subprocess.Popen(['sleep', '60']); "
    "open(sys.argv[1], 'w').write(str(child.pid))"
)


def test_whatever_a_program_started_ends_with_its_episode(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    end = play(from_agent([*program(tmp_path, f"{CHILD}; print(1)"), str(pid)]))
    assert end.reward == 1.0
    assert is_gone(int(pid.read_text()))
    limits = EpisodeLimits(start_limit_s=20.0, call_limit_s=1.0)
    end = play(from_agent([*program(tmp_path, f"{CHILD}; child.wait()"), str(pid)]), limits=limits)
    assert end.reason == "call limit"
    assert is_gone(int(pid.read_text()))


def test_a_worker_that_is_killed_leaves_no_agent_behind(tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib
from dora_rl.envs.adapters.agent_program import AgentPrograms
asyncio.run(AgentPrograms(output_bytes=100).run(
    ["sh", "-c", "sleep 60 & echo $! > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid; wait"],
    stdin=b"", variables={{}}, directory=None,
))
"""
    worker = subprocess.Popen([sys.executable, "-c", code])
    pid = tmp_path / "pid"
    until = time.monotonic() + 30.0
    while not pid.exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert is_gone(int(pid.read_text()))


def is_gone(pid: int) -> bool:
    """Whether a process ends within a few seconds; one that nobody waited for counts as ended."""
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "either a function or a program"),
    ({"command": "a", "agent": "m:f"}, "either a function or a program"),
    ({"command": ""}, "command is empty"),
    ({"agent": "json:dumps"}, "needs 'obj'"),
    ({"agent": "math:pi"}, "not a function"),
)


def test_a_function_cannot_be_sandboxed_and_files_are_for_a_sandbox() -> None:
    with pytest.raises(UserError, match="only a program can be sandboxed"):
        from_agent(len, sandboxed=True)
    with pytest.raises(UserError, match="only a program can be sandboxed"):
        from_agent("true", files=["a"])
    with pytest.raises(UserError, match="there is no file"):
        from_agent("true", sandboxed=True, files=["/no/such/file"])


@pytest.mark.parametrize(("options", "what"), WRONG)
def test_options_that_cannot_work_are_refused_before_the_run(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        load_episode("agent", options)
