"""The library in a real Jupyter kernel: functions of cells, progress as an output, the stop button."""

import textwrap

import pytest

jupyter_client = pytest.importorskip("jupyter_client")

SETUP = """
from dora_rl import Interrupted, resume, start, train
def letters(completions, **columns):
    return [sum(c.isalpha() for c in text) / 6 for text in completions]
SMALL = dict(
    model="tiny", data=[{"prompt": p} for p in "abcdefgh"],
    rewards=[letters, lambda completions, **_: [0.0] * len(completions)],
    batch={"groups": 4, "group_size": 4}, max_completion_length=6, slots=32, scoring={"processes": 1},
    trainer={"serving_dtype": "float32", "micro_batch_tokens": 2048}, instance_threads=1, trainer_threads=1,
)
"""


class Notebook:
    """Cells run one after the other in a kernel of their own."""

    def __init__(self, directory):
        self._manager = jupyter_client.KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(directory))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code, *, interrupt_when=None):
        """What a cell displayed, printed and raised; interrupted once an output contains a text."""
        id, found = self._client.execute(textwrap.dedent(code)), {"html": [], "text": "", "error": None}
        while True:
            message = self._client.get_iopub_msg(timeout=150)
            if message["parent_header"].get("msg_id") != id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data", "execute_result"):
                found["html"].append(content["data"].get("text/html", ""))
                found["text"] += content["data"].get("text/plain", "")
            elif kind == "stream":
                found["text"] += content["text"]
            elif kind == "error":
                found["error"] = (content["ename"], content["evalue"])
            elif kind == "status" and content["execution_state"] == "idle":
                return found
            if interrupt_when is not None and any(interrupt_when in html for html in found["html"]):
                interrupt_when = None
                self._manager.interrupt_kernel()

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path):
    made = Notebook(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_notebook_trains_shows_is_interrupted_and_resumes(notebook):
    assert notebook.run(SETUP)["error"] is None
    shown = notebook.run("run = train(steps=3, **SMALL)\nrun")
    assert shown["error"] is None, shown
    assert any("step 3 of 3" in html and "<svg" in html for html in shown["html"])
    assert "complete, 3 steps" in shown["text"] + "".join(shown["html"])
    cut = notebook.run("train(steps=2000, **SMALL)", interrupt_when="<svg")
    assert cut["error"] is not None
    assert cut["error"][0] == "Interrupted"
    assert "dora_rl.resume" in cut["error"][1]
    beside = notebook.run("""
        run = start(steps=3, **SMALL)
        print([step["step"] for step in run], run.state)
    """)
    assert "[1, 2, 3] complete" in beside["text"]
    assert "interrupted" in notebook.run("from dora_rl import Run; print(Run('runs/run-2'))")["text"]
