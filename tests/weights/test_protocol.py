"""What is asked of every store of versions."""

from pathlib import Path

import pytest

from dora_rl.weights.errors import UnknownVersion, VersionConflict
from dora_rl.weights.protocol import VersionStore
from dora_rl.weights.store import Store

from .versions import history, same_bits


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return Store(tmp_path)


def test_what_is_published_can_be_fetched_whole_or_as_a_delta(store: VersionStore) -> None:
    versions = history(4)
    for number, tensors in enumerate(versions):
        store.publish(number, tensors)
    assert all(same_bits(store.fetch(number), tensors) for number, tensors in enumerate(versions))
    base = {name: tensor.clone() for name, tensor in versions[1].items()}
    delta = store.fetch_delta(3, 1, base)
    assert same_bits(base, versions[1])
    for name, change in delta.items():
        base[name].view(-1).index_copy_(0, change.indices_N, change.values_N)
    assert same_bits(base, versions[3])


def test_versions_come_in_order_and_go_when_retired(store: VersionStore) -> None:
    versions = history(3)
    for number, tensors in enumerate(versions):
        store.publish(number, tensors)
    with pytest.raises(VersionConflict, match="cannot follow version 2"):
        store.publish(4, versions[0])
    with pytest.raises(VersionConflict, match="newest"):
        store.retire(2)
    store.retire(0)
    store.retire(0)
    with pytest.raises(UnknownVersion):
        store.fetch(0)
    assert same_bits(store.fetch(1), versions[1])
