"""Changes applied to a resident version: checked in full before the first value is written."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from dora_rl.engines.errors import VersionError
from dora_rl.model.delta import Delta, ParameterChange

_LOT_VALUES = 1 << 24
ModuleT = TypeVar("ModuleT", bound=nn.Module)
_Named = tuple[str, ParameterChange]


def check_delta(delta: Delta, parameters: Mapping[str, Tensor]) -> None:
    """Refuse a delta that cannot be applied to these parameters."""
    for name, change in delta.items():
        if name not in parameters:
            raise VersionError(f"the delta changes '{name}', which the model does not have")
        _check_kind(name, change, parameters[name])
    changes = [(name, change) for name, change in delta.items() if len(change.indices_N)]
    sizes = {name: parameter.numel() for name, parameter in parameters.items()}
    device = next(iter(parameters.values())).device
    if all(verdict.item() for verdict in [_do_fit(some, sizes, device) for some in _lots(changes)]):
        return
    for name, change in changes:
        lowest, highest = change.indices_N.aminmax()
        if lowest < 0 or highest >= sizes[name]:
            raise VersionError(f"the delta reaches beyond the {sizes[name]} values of '{name}'")
        if not change.values_N.isfinite().all():
            raise VersionError(f"the delta makes values of '{name}' infinite or no number")


def _check_kind(name: str, change: ParameterChange, parameter: Tensor) -> None:
    """Refuse a change whose indices and values do not match, or whose dtype is not the parameter's."""
    indices_N, values_N = change.indices_N, change.values_N
    if indices_N.shape != values_N.shape or indices_N.ndim != 1 or indices_N.dtype != torch.int64:
        raise VersionError(f"indices and values of '{name}' do not belong together")
    if values_N.dtype != parameter.dtype:
        raise VersionError(f"the delta of '{name}' is {values_N.dtype}, the engine's is {parameter.dtype}")


def _lots(changes: Sequence[_Named]) -> Iterator[list[_Named]]:
    """Changes in lots that are checked together: each check costs launches, and takes some bytes a value."""
    lot: list[_Named] = []
    num_values = 0
    for name, change in changes:
        if lot and num_values + len(change.indices_N) > _LOT_VALUES:
            yield lot
            lot, num_values = [], 0
        lot.append((name, change))
        num_values += len(change.indices_N)
    if lot:
        yield lot


def _do_fit(changes: Sequence[_Named], sizes: Mapping[str, int], device: torch.device) -> Tensor:
    """Whether all indices are within their parameters and all values finite, as a tensor still being
    computed.

    Looked at on the device, wherever the change is: the host would spend most of its time on fresh pages.
    """
    counts = [len(change.indices_N) for _, change in changes]
    limits = torch.tensor([[sizes[name] for name, _ in changes], counts], device=device)
    limits_N = torch.repeat_interleave(limits[0], limits[1], output_size=sum(counts))
    indices_N = torch.cat([change.indices_N.to(device) for _, change in changes])
    are_within = (indices_N >= 0).logical_and_(indices_N < limits_N).all()
    are_numbers = torch.cat([change.values_N.to(device) for _, change in changes]).isfinite().all()
    return are_within.logical_and_(are_numbers)


def changed(decoder: ModuleT, delta: Delta) -> ModuleT:
    """The same decoder, with the delta applied in place."""
    apply_delta(dict(decoder.named_parameters()), delta)
    return decoder


@torch.no_grad()
def apply_delta(parameters: Mapping[str, Tensor], delta: Delta) -> None:
    """Set the values that a delta names."""
    for name, change in delta.items():
        parameter = parameters[name]
        indices_N, values_N = (each.to(parameter.device) for each in (change.indices_N, change.values_N))
        parameter.view(-1).index_copy_(0, indices_N, values_N)


def inverse(decoder: nn.Module, delta: Delta) -> Delta:
    """The delta that undoes a delta."""
    parameters = dict(decoder.named_parameters())
    return {
        name: ParameterChange(
            indices_N=change.indices_N,
            values_N=parameters[name].detach().view(-1)[change.indices_N.to(parameters[name].device)],
        )
        for name, change in delta.items()
    }
