"""Changes applied to a resident version: checked in full before the first value is written."""

import torch
from torch import Tensor

from dora_rl.model.decoder import Decoder
from dora_rl.model.delta import Change, Delta
from dora_rl.rollout.errors import VersionError


def check_delta(delta: Delta, decoder: Decoder) -> None:
    """Refuse a delta that cannot be applied to a decoder."""
    parameters = dict(decoder.named_parameters())
    for name, change in delta.items():
        if name not in parameters:
            raise VersionError(f"the delta changes '{name}', which the model does not have")
        _check_kind(name, change, parameters[name])
    changes = {name: change for name, change in delta.items() if len(change.indices_N)}
    if not changes:
        return
    sizes = [parameters[name].numel() for name in changes]
    for name, size, (lowest, highest, is_finite) in zip(changes, sizes, _seen(changes), strict=True):
        if lowest < 0 or highest >= size:
            raise VersionError(f"the delta reaches beyond the {size} values of '{name}'")
        if not is_finite:
            raise VersionError(f"the delta makes values of '{name}' infinite or no number")


def _check_kind(name: str, change: Change, parameter: Tensor) -> None:
    """Refuse a change of other values than the parameter's."""
    indices_N, values_N = change.indices_N, change.values_N
    if indices_N.shape != values_N.shape or indices_N.ndim != 1 or indices_N.dtype != torch.int64:
        raise VersionError(f"indices and values of '{name}' do not belong together")
    if values_N.dtype != parameter.dtype:
        raise VersionError(f"the delta of '{name}' is {values_N.dtype}, the engine's is {parameter.dtype}")


def _seen(changes: Delta) -> list[list[int]]:
    """Of each change its lowest place, its highest, and whether all values are finite.

    One look at them all, with few operations on each: each costs a launch, and a look waits for the device.
    """
    lowest, highest = zip(*(change.indices_N.aminmax() for change in changes.values()), strict=True)
    are_finite = [change.values_N.isfinite().all() for change in changes.values()]
    columns = [torch.stack(lowest), torch.stack(highest), torch.stack(are_finite).long()]
    return torch.stack(columns, dim=1).tolist()


@torch.no_grad()
def changed(decoder: Decoder, delta: Delta) -> Decoder:
    """The same decoder, with the delta applied."""
    parameters = dict(decoder.named_parameters())
    for name, change in delta.items():
        parameter = parameters[name]
        indices_N, values_N = (each.to(parameter.device) for each in (change.indices_N, change.values_N))
        parameter.view(-1).index_copy_(0, indices_N, values_N)
    return decoder


def inverse(decoder: Decoder, delta: Delta) -> Delta:
    """The change that undoes a change."""
    parameters = dict(decoder.named_parameters())
    return {
        name: Change(
            indices_N=change.indices_N,
            values_N=parameters[name].detach().view(-1)[change.indices_N.to(parameters[name].device)],
        )
        for name, change in delta.items()
    }
