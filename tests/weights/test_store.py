"""Any version of the window comes back bit for bit; a version is final; what is needed stays."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.fence import StaleLeader, take_epoch
from dora_rl.weights.atomic_files import Data, Files
from dora_rl.weights.chain import AnchorPolicy, Inventory
from dora_rl.weights.errors import (
    Damaged,
    StoreBusy,
    UnknownVersion,
    VersionConflict,
    WeightsError,
    WrongBase,
)
from dora_rl.weights.store import Store
from dora_rl.weights.strips import strips_in

from .versions import changed, history, random_tensor, same_bits

SEEDS = st.integers(0, 2**32)


def published(
    directory: Path,
    count: int,
    *,
    every: int = 32,
    chain_share: float = 1e9,
    kept_deltas: int = 1,
    **settings: object,
) -> tuple[Store, list]:
    versions = history(count, **settings)  # type: ignore[arg-type]
    policy = AnchorPolicy(every=every, chain_share=chain_share, kept_deltas=kept_deltas)
    store = Store(directory, policy=policy)
    for number, tensors in enumerate(versions):
        store.publish(number, tensors)
    return store, versions


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"lock"}


@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    density=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    every=st.integers(1, 5),
    seed=SEEDS,
)
def test_every_version_comes_back_bit_for_bit(
    dtype: torch.dtype,
    density: float,
    every: int,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("store")
    store, versions = published(directory, 6, every=every, dtype=dtype, density=density, seed=seed)
    store.close()
    for number, tensors in enumerate(versions):
        assert same_bits(Store(directory).fetch(number), tensors)


def test_a_delta_spans_several_versions(tmp_path: Path) -> None:
    store, versions = published(tmp_path, 6, every=3)
    delta = store.fetch_delta(5, 1, versions[1])
    tensors = {name: tensor.clone() for name, tensor in versions[1].items()}
    for name, change in delta.items():
        tensors[name].view(-1)[change.indices_N] = change.values_N
    assert same_bits(tensors, versions[5])


def test_deltas_stay_that_lead_from_the_oldest_version_to_the_newest(tmp_path: Path) -> None:
    """So that an instance of an old version need not read a whole one because an anchor stands between."""
    store, _ = published(tmp_path, 7, every=3)
    for retired in (0, 2, 3, 4, 5):
        store.retire(retired)
    assert {f"v0000000{each}.delta" for each in range(1, 7)} < names(tmp_path)
    assert "v00000003.anchor" not in names(tmp_path)
    store.retire(1)
    assert names(tmp_path) == {"v00000006.anchor", "v00000006.delta"}


def test_a_version_that_is_kept_when_all_around_it_are_retired_keeps_no_deltas(tmp_path: Path) -> None:
    """As the initial model is that plays a role: nobody goes from it to the newest by a hundred deltas."""
    store, versions = published(tmp_path, 24, every=8, kept_deltas=4)
    for retired in range(1, 21):
        store.retire(retired)
    assert store.versions == (0, 21, 22, 23)
    deltas = {name for name in names(tmp_path) if name.endswith(".delta")}
    assert deltas == {f"v{each:08}.delta" for each in range(17, 24)}
    assert same_bits(store.fetch(0), versions[0])
    delta = store.fetch_delta(23, 0, versions[0])
    tensors = {name: tensor.clone() for name, tensor in versions[0].items()}
    for name, change in delta.items():
        tensors[name].view(-1)[change.indices_N] = change.values_N
    assert same_bits(tensors, versions[23])


def test_the_newest_deltas_stay_whoever_is_retired(tmp_path: Path) -> None:
    """So that neither has one of a version that was retired meanwhile."""
    store, versions = published(tmp_path, 7, every=3, kept_deltas=4)
    for retired in range(6):
        store.retire(retired)
    assert names(tmp_path) - {f"v0000000{each}.retired" for each in (3, 4, 5)} == {
        "v00000006.anchor",
        *(f"v0000000{each}.delta" for each in (3, 4, 5, 6)),
    }
    assert store.versions == (6,)
    tensors = {name: tensor.clone() for name, tensor in versions[2].items()}
    for name, change in store.fetch_delta(6, 2, tensors).items():
        tensors[name].view(-1)[change.indices_N] = change.values_N
    assert same_bits(tensors, versions[6])


def test_a_delta_spans_versions_that_are_gone(tmp_path: Path) -> None:
    """As when an instance still has a version that was retired, and adopts the newest, past an anchor."""
    store, versions = published(tmp_path, 7, every=3)
    for retired in range(5):
        store.retire(retired)
    assert "v00000002.delta" not in names(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in versions[1].items()}
    for name, change in store.fetch_delta(6, 1, tensors).items():
        tensors[name].view(-1)[change.indices_N] = change.values_N
    assert same_bits(tensors, versions[6])
    with pytest.raises(WrongBase, match="other tensors"):
        store.fetch_delta(6, 1, {"x": torch.zeros(4)})


def test_a_delta_is_refused_by_weights_it_was_not_made_against(tmp_path: Path) -> None:
    store, versions = published(tmp_path, 3)
    with pytest.raises(WrongBase, match=r"v00000002\.delta"):
        store.fetch_delta(2, 1, versions[0])
    with pytest.raises(WrongBase, match="another shape"):
        store.fetch_delta(2, 1, versions[1] | {"norm.weight": torch.zeros(4)})
    with pytest.raises(WrongBase, match="another set"):
        store.fetch_delta(2, 1, {"x": torch.zeros(4)})
    with pytest.raises(WrongBase, match="not newer"):
        store.fetch_delta(1, 1, versions[1])


def test_a_delta_is_small(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    old = {"x": (torch.randn(300_000, generator=generator) * 0.02).bfloat16()}
    new = {"x": changed(old["x"], 0.03, generator, most=1)}
    share = float((old["x"].view(torch.int16) != new["x"].view(torch.int16)).float().mean())
    store = Store(tmp_path)
    store.publish(0, old)
    store.publish(1, new)
    delta_bytes, anchor_bytes = ((tmp_path / f"v0000000{i}.{kind}").stat().st_size
                                 for i, kind in ((1, "delta"), (0, "anchor")))  # fmt: skip
    assert 0.015 < share < 0.03
    assert delta_bytes < 0.75 * share * anchor_bytes


def test_anchors_are_written_as_often_as_asked(tmp_path: Path) -> None:
    published(tmp_path, 8, every=3)
    assert {name for name in names(tmp_path) if "anchor" in name} == {
        f"v{number:08}.anchor" for number in (0, 3, 6)
    }


def test_a_long_chain_is_cut_by_its_bytes(tmp_path: Path) -> None:
    published(tmp_path, 8, chain_share=1.0, density=1.0)
    assert sum("anchor" in name for name in names(tmp_path)) >= 3


def test_publishing_again_is_accepted_if_identical_and_refused_otherwise(tmp_path: Path) -> None:
    store, versions = published(tmp_path, 4)
    before = names(tmp_path)
    for number in (1, 3):
        store.publish(number, versions[number])
        with pytest.raises(VersionConflict, match=f"version {number} is published already, with"):
            store.publish(number, versions[0])
    assert names(tmp_path) == before


def test_versions_follow_one_another(tmp_path: Path) -> None:
    store, versions = published(tmp_path, 3)
    with pytest.raises(VersionConflict, match="cannot follow version 2"):
        store.publish(4, versions[0])
    with pytest.raises(VersionConflict, match=r"extra are not in both"):
        store.publish(3, versions[2] | {"extra": torch.zeros(1)})
    with pytest.raises(VersionConflict, match="another shape"):
        store.publish(3, versions[2] | {"norm.weight": torch.zeros(16)})
    with pytest.raises(WeightsError, match="int64"):
        store.publish(3, {"x": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(UnknownVersion, match=r"it holds \[0, 1, 2\]"):
        store.fetch(7)


def test_a_store_has_one_publisher_and_any_number_of_readers(tmp_path: Path) -> None:
    store, versions = published(tmp_path, 3)
    other = Store(tmp_path)
    assert same_bits(other.fetch(2), versions[2])
    with pytest.raises(StoreBusy, match=rf"process {os.getpid()} holds .*lock.* kill -9 {os.getpid()}"):
        other.publish(3, versions[0])
    store.close()
    other.publish(3, versions[0])


def test_a_reopened_store_goes_on(tmp_path: Path) -> None:
    versions = history(6)
    for number, tensors in enumerate(versions):
        with Store(tmp_path) as store:
            store.publish(number, tensors)
    assert all(same_bits(Store(tmp_path).fetch(number), each) for number, each in enumerate(versions))


def test_a_run_may_begin_at_any_version(tmp_path: Path) -> None:
    versions = history(2)
    store = Store(tmp_path)
    store.publish(41, versions[0])
    store.publish(42, versions[1])
    assert same_bits(store.fetch(42), versions[1])


def test_the_published_tensors_are_the_publishers_to_overwrite(tmp_path: Path) -> None:
    store, versions = Store(tmp_path), history(3)
    mine = {name: tensor.clone() for name, tensor in versions[0].items()}
    for number, tensors in enumerate(versions):
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])
        store.publish(number, mine)
    assert all(same_bits(store.fetch(number), each) for number, each in enumerate(versions))


@given(seed=SEEDS, every=st.integers(1, 4), order=st.permutations(range(7)), count=st.integers(1, 7))
def test_retiring_keeps_what_others_need_and_nothing_else(
    seed: int, every: int, order: list[int], count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("store")
    store, versions = published(directory, 8, every=every, seed=seed)
    for number in order[:count]:
        store.retire(number)
        store.retire(number)
    live = [number for number in range(8) if number not in order[:count]]
    assert Store(directory).versions == tuple(live)
    for number in live:
        assert same_bits(store.fetch(number), versions[number])
    for number in order[:count]:
        with pytest.raises(UnknownVersion):
            store.fetch(number)
    first = min(live) // every * every
    assert min(int(name[1:9]) for name in names(directory)) >= first
    for earlier, later in pairwise(live):
        if later == earlier + 1:
            store.fetch_delta(later, earlier, versions[earlier])


def test_a_reader_whose_chain_is_replaced_while_it_reads_looks_again(tmp_path: Path) -> None:
    store, versions = published(tmp_path, 4, every=3)
    for number in range(3):
        store.retire(number)
    reader = Store(tmp_path)
    # What it saw before the anchor of version 3 was written and what that made needless was removed.
    seen = iter([Inventory(anchors={0}, deltas={1, 2, 3}, retired=set())])
    reader._shelf.inventory = lambda: next(seen, None) or store._shelf.inventory()  # type: ignore[method-assign]
    assert same_bits(reader.fetch(3), versions[3])


def test_when_all_but_the_newest_is_retired_its_chain_is_left(tmp_path: Path) -> None:
    store, _ = published(tmp_path, 7, every=3)
    for number in range(6):
        store.retire(number)
    assert names(tmp_path) == {"v00000006.anchor", "v00000006.delta"}
    with pytest.raises(VersionConflict, match="newest"):
        store.retire(6)


def test_strips_of_several_dtypes_and_sizes_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tensors in strips together, some alone, an empty one among them and one that never changes."""
    monkeypatch.setattr("dora_rl.weights.strips._MOST_VALUES", 100)
    dtypes = {"b": torch.float32, "f": torch.float16}
    sizes = {"a": 60, "b": 30, "c": 300, "d": 0, "e": 40, "f": 50, "g": 7}
    generator = torch.Generator().manual_seed(3)
    first = {
        name: random_tensor((size,), dtypes.get(name, torch.bfloat16), generator)
        for name, size in sizes.items()
    }
    assert [strip.names for strip in strips_in(first)] == [
        ("a",), ("b",), ("c",), ("d", "e"), ("f",), ("g",)
    ]  # fmt: skip
    versions = [first]
    for density in (0.1, 0.5, 0.02):
        moved = {name: changed(tensor, density, generator) for name, tensor in versions[-1].items()}
        versions.append({**moved, "f": first["f"]})
    with Store(tmp_path) as store:
        for number, tensors in enumerate(versions):
            # In whatever order they come.
            store.publish(number, dict(reversed(tensors.items())) if number % 2 else tensors)
        for number, tensors in enumerate(versions):
            assert same_bits(store.fetch(number), tensors)
        for older, newer in ((0, 1), (0, 3), (1, 3)):
            base = {name: tensor.clone() for name, tensor in versions[older].items()}
            delta = store.fetch_delta(newer, older, base)
            assert "f" not in delta
            for name, change in delta.items():
                base[name].index_copy_(0, change.indices_N, change.values_N)
            assert same_bits(base, versions[newer])


def test_a_store_of_another_format_is_not_called_damaged(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.publish(0, history(1)[0])
    path = tmp_path / "v00000000.anchor"
    path.write_bytes(path.read_bytes().replace(b"DORAWGT2", b"DORAWGT1"))
    with pytest.raises(WeightsError, match="has the format DORAWGT1, and this is DORAWGT2") as raised:
        Store(tmp_path).fetch(0)
    assert not isinstance(raised.value, Damaged)


# --- who leads ---


class OvertakenFiles(Files):
    """Files of a publisher that another process overtakes while it writes."""

    overtake = False

    def append(self, descriptor: int, chunk: Data) -> None:
        super().append(descriptor, chunk)
        if self.overtake and self._fence is not None:
            take_epoch(self._fence.directory)
            self.overtake = False


def test_a_publisher_that_was_overtaken_publishes_and_retires_nothing(tmp_path: Path) -> None:
    first, second, third = history(3)
    files = OvertakenFiles(take_epoch(tmp_path / "epochs"))
    with Store(tmp_path / "versions", files=files) as store:
        store.publish(0, first)
        store.publish(1, second)
        files.overtake = True
        before = sorted((tmp_path / "versions").iterdir())
        with pytest.raises(StaleLeader):
            store.publish(2, third)
        for refused in (lambda: store.publish(2, third), lambda: store.retire(0)):
            with pytest.raises(StaleLeader):
                refused()
        assert sorted((tmp_path / "versions").iterdir()) == before
        assert store.versions == (0, 1)
