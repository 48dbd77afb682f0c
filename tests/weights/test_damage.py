"""A file that is not what was written is an error that names it, and never weights."""

import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from dora_rl.weights import container
from dora_rl.weights.chain import AnchorPolicy
from dora_rl.weights.container import MAGIC, VersionHeader, end_of_file, read_header
from dora_rl.weights.errors import Damaged, MissingFile, WrongBase
from dora_rl.weights.store import Store

from .versions import history

FILES = ("v00000000.anchor", "v00000002.delta")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Store(tmp_path, policy=AnchorPolicy(every=9, chain_share=1e9)) as store:
        for number, tensors in enumerate(history(4)):
            store.publish(number, tensors)
    return tmp_path


def header_of(path: Path) -> VersionHeader:
    with path.open("rb") as file:
        return read_header(file, path)


def section_starts(path: Path) -> list[int]:
    starts = [len(MAGIC)]
    for part in header_of(path).parts:
        for section in part.sections:
            starts.append(starts[-1] + section.stored_bytes)
    return starts


def fetch(directory: Path) -> None:
    Store(directory).fetch(3)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_an_error_that_names_it(directory: Path, name: str) -> None:
    path = directory / name
    whole = path.read_bytes()
    for length in sorted({0, 1, 7, *section_starts(path), len(whole) // 2, len(whole) - 9, len(whole) - 1}):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=name):
            fetch(directory)
    path.write_bytes(whole + b"\0")
    with pytest.raises(Damaged, match=name):
        fetch(directory)
    path.write_bytes(whole)
    fetch(directory)


@pytest.mark.parametrize("name", FILES)
def test_one_changed_bit_in_any_section_is_an_error_that_names_the_file(directory: Path, name: str) -> None:
    path = directory / name
    whole = path.read_bytes()
    places = {0, *section_starts(path), *range(section_starts(path)[-1], len(whole), 7), len(whole) - 1}
    for place in sorted(places):
        altered = bytearray(whole)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        with pytest.raises(Damaged, match=name):
            fetch(directory)


def test_a_file_in_anothers_place_is_an_error(directory: Path) -> None:
    shutil.copy(directory / "v00000002.delta", directory / "v00000001.delta")
    with pytest.raises(Damaged, match=r"v00000001.delta is damaged: it holds the delta of version 2"):
        fetch(directory)


def test_a_delta_of_another_run_is_an_error(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    with Store(other) as store:
        for number, tensors in enumerate(history(4, seed=1)):
            store.publish(number, tensors)
    shutil.copy(other / "v00000002.delta", directory)
    with pytest.raises(WrongBase, match=r"v00000002.delta was made against another version 1"):
        fetch(directory)


def test_a_missing_link_is_an_error_that_names_it(directory: Path) -> None:
    (directory / "v00000001.delta").unlink()
    with pytest.raises(MissingFile, match=r"v00000001.delta is missing"):
        fetch(directory)


def rewritten(path: Path, **changes: object) -> None:
    """The file with a header that is whole and consistent with itself, and says something else at first."""
    header = header_of(path)
    payload = path.read_bytes()[: len(MAGIC) + header.payload_bytes]
    of_tensor = {name: changes.pop(name) for name in ("name", "shape") if name in changes}
    entry = msgspec.structs.replace(header.tensors[0], **of_tensor)
    part = msgspec.structs.replace(header.parts[0], **changes)
    header = msgspec.structs.replace(
        header, tensors=(entry, *header.tensors[1:]), parts=(part, *header.parts[1:])
    )
    path.write_bytes(payload + end_of_file(header))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (2**40, 2**20)},
        {"shape": (-1, -640)},
        {"count": 2**50},
        {"count": -1},
        {"name": "norm.weight"},
        {"base_sum": 2**63},
    ],
    ids=str,
)
def test_impossible_sizes_are_refused_before_anything_is_allocated(
    directory: Path, name: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(directory / name, **changes)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(Damaged, match=name):
        Store(directory)._shelf.read_anchor(0) if "anchor" in name else Store(directory)._shelf.read_delta(2)


def test_a_section_cannot_inflate_beyond_what_it_promises(directory: Path) -> None:
    path = directory / "v00000002.delta"
    header = header_of(path)
    part = header.parts[0]
    sections = tuple(
        msgspec.structs.replace(section, raw_bytes=2**45) if section.coding == "deflate" else section
        for section in part.sections
    )
    assert sections != part.sections
    rewritten(path, sections=sections)
    with pytest.raises(Damaged, match=r"where \d+ belong"):
        fetch(directory)


def test_parts_that_are_missing_are_noticed(directory: Path) -> None:
    path = directory / "v00000002.delta"
    header = header_of(path)
    path.write_bytes(MAGIC + end_of_file(msgspec.structs.replace(header, parts=())))
    with pytest.raises(Damaged, match="0 parts where 1 belong"):
        fetch(directory)


def test_tensors_in_another_order_are_noticed(directory: Path) -> None:
    path = directory / "v00000002.delta"
    header = header_of(path)
    payload = path.read_bytes()[: len(MAGIC) + header.payload_bytes]
    turned = msgspec.structs.replace(header, tensors=header.tensors[::-1])
    path.write_bytes(payload + end_of_file(turned))
    with pytest.raises(WrongBase, match="in another order"):
        fetch(directory)


def test_a_header_that_would_not_fit_is_refused(directory: Path) -> None:
    path = directory / FILES[0]
    data = bytearray(path.read_bytes())
    data[-16:-8] = (2**60).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(Damaged, match="does not fit"):
        fetch(directory)
    assert container._HEADER_LIMIT_BYTES < 2**60


def test_other_files_in_the_directory_are_left_alone(directory: Path) -> None:
    (directory / "notes.txt").write_text("mine")
    (directory / ".v00000004.delta.1.tmp").write_bytes(b"half a file")
    fetch(directory)
    with Store(directory) as store:
        store.publish(4, history(5)[4])
    assert (directory / "notes.txt").read_text() == "mine"
    assert not list(directory.glob(".*.tmp"))
