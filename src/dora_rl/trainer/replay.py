"""Router replay: the experts that an engine took, for the same tokens in the trainer.

Engine and trainer round differently, and where two experts are nearly alike they may choose otherwise, which
is another function and no rounding. A token whose experts were not recorded (of a prompt, of an environment,
drawn by an engine that records nothing) keeps the trainer's own.
"""

from array import array

import torch
from torch import Tensor

from dora_rl.core.errors import DoraError
from dora_rl.core.routes import type_code
from dora_rl.model.config import ModelConfig
from dora_rl.trainer.tensors import Sequences


def replayed(model: ModelConfig, sequences: Sequences) -> dict[int, Tensor]:
    """The experts of each token by layer, `[tokens, active]`; -1 where they were not recorded."""
    layers = [layer for layer in range(model.num_layers) if model.experts_of(layer)]
    if model.experts is None or not any(sequences.experts):
        return {}
    width = len(layers) * model.experts.num_active
    code = type_code(model.experts.num_experts)
    rows = [array(code, own).tolist() if own else [-1] * width for own in sequences.experts]
    if any(len(row) != width for row in rows):
        raise DoraError(f"experts recorded of tokens are not {width} numbers: they are of another model")
    device = sequences.packed.tokens_T.device
    given_TW = torch.full((len(sequences.packed.tokens_T), width), -1, device=device)
    given_TW[sequences.predicted_at_P] = torch.tensor(rows, device=device)
    by_layer = given_TW.unflatten(1, (len(layers), model.experts.num_active)).unbind(1)
    return dict(zip(layers, by_layer, strict=True))
