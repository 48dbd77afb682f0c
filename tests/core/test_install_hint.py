"""A hint to install something names what pip can find: the index's package, the clone, the archive."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from dora_rl.core import errors
from dora_rl.core.errors import EXTRA_OF, install_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


class Installed:
    """An installed package and where it came from. Speaks Distribution."""

    def __init__(self, origin: dict[str, object] | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        return None if self._origin is None else json.dumps(self._origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'dora-rl[train]'"),
        ({"url": "file:///a%20b/dora", "dir_info": {"editable": True}}, "pip install -e '/a b/dora[train]'"),
        ({"url": "file:///dora", "dir_info": {}}, "pip install '/dora[train]'"),
        ({"url": "file:///d.whl", "archive_info": {}}, "pip install 'dora-rl[train] @ file:///d.whl'"),
        (
            {"url": "https://host/dora", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'dora-rl[train] @ git+https://host/dora@abc'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, command: str
) -> None:
    monkeypatch.setattr(errors, "distribution", lambda name: Installed(origin))
    assert install_hint("train") == command


def test_every_extra_that_a_hint_names_is_one_of_the_project() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = {*EXTRA_OF.values(), *re.findall(r"install_hint\([\"'](\w+)[\"']\)", source)}
    named |= {extra for extra in re.findall(r"dora-rl\[(\w+)\]", source) if extra != "extra"}
    assert named
    assert named <= set(EXTRAS)
    for package, extra in EXTRA_OF.items():
        assert any(re.match(rf"{package}\b", requirement) for requirement in EXTRAS[extra])
