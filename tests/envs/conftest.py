"""A small data set in every form it can have, and a model behind an endpoint."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chat_server import Endpoint, serving

ROWS = [{"question": f"{n} + 1", "answer": str(n + 1), "level": n % 3} for n in range(20)]


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return path


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as made:
        yield made
