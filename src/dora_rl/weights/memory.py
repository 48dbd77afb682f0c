"""Within a process: versions by reference, nothing is copied.

Whoever publishes tensors gives up writing to them: they are the version, for as long as it is not
retired. Who wants to go on writing publishes copies; casting float32 masters to bfloat16 makes them anyway,
casting them to float32 does not. A write in place that torch can see (not one through `.data`) is found out
when the version is next asked for. Fetched tensors are the published ones (copies on another device) and are
read only, too.
"""

from dora_rl.model.delta import Delta
from dora_rl.weights.channel import Resident
from dora_rl.weights.difference import changes_between
from dora_rl.weights.errors import UnknownVersion, VersionConflict, WrittenAfter
from dora_rl.weights.strips import Tensors


class InProcess:
    """Speaks Channel."""

    def __init__(self) -> None:
        self._versions: dict[int, Tensors] = {}
        self._writes: dict[int, int] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that can be fetched, oldest first."""
        return tuple(sorted(self._versions))

    def publish(self, version: int, tensors: Tensors) -> None:
        """Hand a version over."""
        newest = max(self._versions, default=None)
        if newest is not None and version != newest + 1:
            raise VersionConflict(f"version {version} cannot follow version {newest}")
        self._versions[version] = {name: tensor.detach() for name, tensor in tensors.items()}
        self._writes[version] = _num_writes(tensors)

    def fetch(self, version: int, device: str | None = None) -> Tensors:
        """The tensors that were published; on their own device unless another is named."""
        tensors = self._versions.get(version)
        if tensors is None:
            raise UnknownVersion(f"version {version} is not here; {list(self.versions)} are")
        if _num_writes(tensors) != self._writes[version]:
            raise WrittenAfter(f"tensors of version {version} were written to after they were published")
        return tensors if device is None else {name: tensor.to(device) for name, tensor in tensors.items()}

    def fetch_delta(self, version: int, base: Resident) -> Delta:
        """What differs between the base as it is and the version."""
        new = self.fetch(version)
        return changes_between(base.tensors, new)

    def retire(self, version: int) -> None:
        """Let go of a version's tensors."""
        if version == max(self._versions, default=None):
            raise VersionConflict(f"version {version} is the newest")
        self._versions.pop(version, None)
        self._writes.pop(version, None)


def _num_writes(tensors: Tensors) -> int:
    return sum(tensor._version for tensor in tensors.values())
