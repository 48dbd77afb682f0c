"""`dora serve` as somebody who starts it sees it: what it prints, answers and leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dora_rl.api.model_server import Serving
from dora_rl.cli.serve import _show

from .conftest import Called

HELP_AND_LIST_MODULES = """
import sys
from dora_rl.cli.main import app
app(["serve", "--help"], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


def test_its_help_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP_AND_LIST_MODULES], capture_output=True, text=True)
    assert "--follow" in done.stdout
    assert not {"torch", "numpy", "aiohttp"} & set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--api-key", "secret"), "--api-key names no environment variable"),
        (("--api-key", "env:DORA_NO_SUCH_KEY"), "DORA_NO_SUCH_KEY, which is not set"),
        (("--follow",), "nothing to follow"),
        (("--temperature", "1"), "--set temperature=VALUE"),
    ],
)
def test_mistakes_are_sentences(dora: Any, arguments: tuple[str, ...], said: str) -> None:
    called: Called = dora("serve", "tiny", *arguments)
    assert (called.exit_code, called.out) == (2, "")
    assert said in called.err


def test_a_drawn_key_is_shown_and_one_in_a_variable_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    serving = Serving(url="http://127.0.0.1:1/v1", key="dora-secret", model="tiny", context_tokens=9)
    _show(serving, None)
    assert "key: dora-secret\n" in capsys.readouterr().out
    _show(serving, "MY_KEY")
    shown = capsys.readouterr().out
    assert "dora-secret" not in shown
    assert '"Authorization: Bearer $MY_KEY"' in shown, "the shell puts it in"


# --- the whole ----------------------------------------------------------------------------------


class Asker:
    """A client that knows nothing but HTTP."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
        data = None if body is None else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.key}", **headers}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{path}", data, given)) as found:
                return found.status, dict(found.headers), found.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read().decode()

    def chat(self, text: str = "a", **fields: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 12, **fields}
        status, _, said = self.ask("chat/completions", body)
        assert status == 200, said
        return dict(json.loads(said))

    def says(self, text: str = "a", **fields: Any) -> str:
        return str(self.chat(text, **fields)["choices"][0]["message"]["content"])


@contextmanager
def served(*arguments: str) -> Iterator[tuple[Asker, "subprocess.Popen[str]", list[str]]]:
    """A server in a process of its own; what it printed is complete when the block has ended."""
    code = "from dora_rl.cli.entry import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", *arguments, "--port", "0", "--set", "devices.kind=cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell may have started the tests with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stdout is not None
    printed: list[str] = []
    try:
        for line in process.stdout:
            printed.append(line)
            if line.startswith("Ctrl-C"):
                break
        whole = "".join(printed)
        found = re.search(r"url: (\S+)\nkey: (\S+)\n", whole)
        assert found, f"{whole}{process.communicate()[1]}"
        yield Asker(found[1], found[2]), process, printed
    finally:
        process.kill()
        process.communicate()


def stopped(process: "subprocess.Popen[str]", number: int) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return set(map(int, found))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_model_is_served_until_an_interrupt(model: Path) -> None:
    pytest.importorskip("aiohttp")
    with served(str(model), "--context", "64") as (asker, process, printed):
        assert f"model: {model.name}, conversations of up to 64 tokens" in printed[0]
        status, _, listed = asker.ask("models")
        assert (status, json.loads(listed)["data"][0]["id"]) == (200, model.name)

        found = asker.chat(temperature=0, logprobs=True)
        choice = found["choices"][0]
        assert found["model"] == model.name
        assert found["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
        assert all(each["logprob"] <= 0 for each in choice["logprobs"]["content"])
        assert asker.says(temperature=0) == choice["message"]["content"], "greedy is greedy"
        assert asker.says(seed=5) == asker.says(seed=5)
        assert len({asker.says() for _ in range(4)}) > 1, "without a seed every draw is new"
        long = asker.chat(max_tokens=None, seed=1)
        assert long["usage"]["total_tokens"] <= 64
        said = {seed: asker.says(seed=seed, max_tokens=40) for seed in range(8)}
        seed, whole = max(said.items(), key=lambda each: len(each[1]))
        stop = whole[len(whole) // 2]
        assert asker.says(seed=seed, max_tokens=40, stop=[stop]) == whole[: whole.index(stop)]

        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 12, "seed": 5, "stream": True}
        status, headers, events = asker.ask("chat/completions", body)
        data = [line.removeprefix("data: ") for line in events.split("\n") if line.startswith("data: ")]
        pieces = [json.loads(each)["choices"][0]["delta"].get("content", "") for each in data[:-1]]
        assert (status, data[-1], "".join(pieces)) == (200, "[DONE]", asker.says(seed=5))
        assert headers["X-Dora-Model"] == model.name
        status, _, answer = asker.ask("responses", {"input": "a", "max_output_tokens": 12, "temperature": 0})
        assert status == 200
        assert json.loads(answer)["output"][0]["content"][0]["text"] == choice["message"]["content"]

        with ThreadPoolExecutor(50) as threads:
            together = list(threads.map(lambda seed: asker.says(seed=seed), range(50)))
        assert len(set(together)) > 25
        assert together[7] == asker.says(seed=7), "what else was asked changes no draw"

        assert Asker(asker.url, "wrong").ask("models")[0] == 401
        assert asker.ask("models", Host="evil.example")[0] == 403
        assert asker.ask("chat/completions", {"messages": [{"role": "user", "content": "a" * 99}]})[0] == 400

        started = children(process.pid)
        assert started, "the instance is a process of its own"
        code, out, err = stopped(process, signal.SIGINT)
        assert code == 0
        assert "Traceback" not in err
        assert re.search(r"\d+ requests, [\d,]+ tokens\n", out)
        deadline = time.monotonic() + 5.0
        while any(os.path.exists(f"/proc/{pid}") for pid in started):
            assert time.monotonic() < deadline, "nothing it started is left"
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_openai_package_is_answered(model: Path) -> None:
    pytest.importorskip("aiohttp")
    openai = pytest.importorskip("openai")
    with served(str(model), "--plain") as (asker, process, _):
        client = openai.OpenAI(base_url=asker.url, api_key=asker.key)
        asked: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "a"}]}
        found = client.chat.completions.create(**asked, max_tokens=9, temperature=0)
        stream = client.chat.completions.create(**asked, max_tokens=9, temperature=0, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == found.choices[0].message.content
        said = client.responses.create(model="any", input="a", max_output_tokens=9, temperature=0)
        assert said.output_text == found.choices[0].message.content
        assert [each.id for each in client.models.list()] == [model.name]
        assert stopped(process, signal.SIGTERM)[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_is_followed_from_version_to_version(project: Path, dora: Any) -> None:
    pytest.importorskip("aiohttp")
    from dora_rl.weights.store import Store

    assert dora("train", "recipe.yaml", "--json").exit_code == 0
    (run,) = Path("runs").iterdir()
    newest = Store(run / "versions").versions[-1]
    with served(str(run), "--follow") as (asker, process, printed):
        assert f"model: {run.name}@{newest}," in printed[0]
        # In place of the run, which is over: the next version, with other weights.
        with Store(run / "versions") as store:
            tensors = {name: -tensor for name, tensor in store.fetch(newest).items()}
            before = asker.chat(temperature=0)
            asking = threading.Thread(target=lambda: [asker.says() for _ in range(50)])
            asking.start()
            store.publish(newest + 1, tensors)
        deadline = time.monotonic() + 60.0
        while (now := asker.chat(temperature=0))["model"] == before["model"]:
            assert time.monotonic() < deadline
        asking.join()
        assert (before["model"], now["model"]) == (f"{run.name}@{newest}", f"{run.name}@{newest + 1}")
        code, _, err = stopped(process, signal.SIGINT)
        assert code == 0
        assert err.endswith(f"{run.name}@{newest + 1} answers now\n")
