"""The documents can be served as a site: pages are in its navigation, relative links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def navigated(entry: Any) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    match entry:
        case str():
            yield entry
        case list():
            for each in entry:
                yield from navigated(each)
        case dict():
            for each in entry.values():
                yield from navigated(each)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as documentation sites name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation_once() -> None:
    nav = list(navigated(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(nav) == [page.relative_to(ROOT / "docs").as_posix() for page in PAGES]


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in _LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}"
        if page.parent.name == "docs":
            assert found.is_relative_to(ROOT / "docs"), f"{page.name} links outside of the site: {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{page.name} links to {target}"
