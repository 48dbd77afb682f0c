"""What `dora init --agent` writes: an episode with a tool, its recipe, rows and a page about them.

The task is small enough for a model of random weights: follow links from page to page and say where they end.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

_RECIPE = """\
# Follow links from page to page with a tool, and say on which page they end: an agent in several turns.
#
#   dora train recipe.yaml              run it: a few minutes on two CPU cores
#   dora train recipe.yaml --dry-run    what it resolves to, and what it will need
#   dora eval runs/recipe-1 --samples 1 --out played.jsonl     every word that was said on held-out rows
#
# Everything left out has a default; --set key=value changes one value for one run.
model: tiny                             # or a directory in Hugging Face format, or smollm2
steps: 40                               # train steps
batch: {groups: 16, group_size: 8}      # rows of a step, and episodes of each

data:
  train: {name: rows.jsonl}             # a `prompt` to begin with, and columns for the episode
  held_out: {name: held_out.jsonl}      # other rows, for evaluation: these are never trained on

episode:
  function: episode.py:follow_links     # gives the reward; other forms: `docs/episodes.md`
  max_turns: 5
  max_context_tokens: 512
response: {max_new_tokens: 80}          # tokens of one turn

# `tiny` has random weights, so it is first shown the column `demonstration`: the turns of a sloppy teacher,
# who often stops too early. The reward teaches the rest. A model that can call tools needs no such line.
warm_start: {steps: 400, update_rows: 32, rate: 3e-3}

algorithm: {preset: grpo, loss: {kind: ppo, clip_low: 0.2, clip_high: 0.28}}
optimizer: {learning_rate: 5e-4, beta2: 0.99}
trainer: {serving_dtype: float32, micro_batch_tokens: 8192}
cluster: {slots: 128}
engine: {step_tokens: 512}

control: {max_staleness: 2}             # how many versions old a trained episode may be at most
evaluation: {every: 20, greedy: false}
checkpoints: {every: 40}
"""

_EPISODE = '''\
"""An episode: what happens between a model's turns, and what it is worth in the end.

A function of a chat and a row that awaits turns. It runs once for every member of a group; all of them answer
with the same version of the model, however long it takes.
"""

MAX_CALLS = 4


class Site:
    """The pages of one row. Methods that are given as tools are described by their docstrings and types."""

    def __init__(self, links):
        self.links = links

    def follow(self, page: str) -> str:
        """Follow the link of a page; the last page is marked with a full stop.

        Args:
            page: the page to open
        """
        if page not in self.links:
            raise KeyError(f"no page {page}")  # what a tool raises is text to the model
        return self.links[page]


async def follow_links(chat, row):
    """Let the model follow links until it says where they end: 1 for the right page, else 0."""
    site = Site(row.columns["links"])
    turn = await chat.turn(tools=[site.follow])  # a first turn begins with the row's prompt
    for _ in range(MAX_CALLS):
        if not turn.tool_calls:
            break
        turn = await chat.turn(await chat.use_tools(turn))
    return float(turn.text.strip() == row.columns["solution"])
'''

_README = """\
# An agent with a tool

A model is asked for a page, calls `follow` to get from page to page, and says the last one. `episode.py` is
what happens between its turns, `recipe.yaml` how it is trained, `rows.jsonl` on what.

    dora train recipe.yaml

To make it yours: write your own tools and reward into `episode.py`, put rows with their columns into
`rows.jsonl`, name a chat model in `recipe.yaml` and leave `warm_start` out. What may block needs no `async`:
write `def` instead of `async def`, and leave `await` out. Environments that exist already (TRL's classes,
gym, MCP servers) need no episode at all: `function: environment`, `gym` or `mcp`.
"""

_PAGES = "abcdefgh"
_LAST = "."
_LONGEST, _NUM_ROWS, _NUM_HELD_OUT, _SLOPPINESS = 3, 1000, 100, 0.5


def _rows(part: str, num_rows: int) -> str:
    rng = random.Random(f"agent starter, {part}")
    return "".join(f"{json.dumps(row)}\n" for row in _drawn(rng, part == "held out", num_rows))


def _drawn(rng: random.Random, is_held_out: bool, num_rows: int) -> Iterator[dict[str, Any]]:
    while num_rows:
        pages = rng.sample(_PAGES, rng.randint(2, _LONGEST) + 1)
        # By the first two pages: no row to train on begins as one that is held out does.
        if ((3 * ord(pages[0]) + 5 * ord(pages[1])) % 7 == 0) == is_held_out:
            yield _row(rng, pages)
            num_rows -= 1


def _row(rng: random.Random, pages: list[str]) -> dict[str, Any]:
    return {
        "prompt": pages[0],
        "links": dict(zip(pages, [*pages[1:-1], pages[-1] + _LAST], strict=False)),
        "solution": pages[-1],
        "demonstration": list(_demonstration(rng, pages)),
    }


def _demonstration(rng: random.Random, pages: list[str]) -> Iterator[str]:
    """The turns of a teacher who now and then stops before the links end."""
    for page in pages[:-1]:
        if page != pages[0] and rng.random() < _SLOPPINESS:
            yield page
            return
        yield f'<tool_call>{{"name":"follow","arguments":{{"page":"{page}"}}}}</tool_call>'
    yield pages[-1]


FILES: dict[str, Callable[[], str]] = {
    "README.md": lambda: _README,
    "recipe.yaml": lambda: _RECIPE,
    "episode.py": lambda: _EPISODE,
    "rows.jsonl": lambda: _rows("train", _NUM_ROWS),
    "held_out.jsonl": lambda: _rows("held out", _NUM_HELD_OUT),
}
"""The files of the starter, by name."""
