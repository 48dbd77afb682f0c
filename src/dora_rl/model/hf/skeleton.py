"""The modules of a model without its weights: names and shapes of its parameters.

Made on torch's meta device, so it costs no memory whatever the size.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dora_rl.model.hf.hf_model import hf_config, telling
from dora_rl.model.parameter_layout import Piece

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@cache
def skeleton(directory: str) -> "PreTrainedModel":
    """The model of a directory on the meta device; not to be changed."""
    from transformers import AutoModelForCausalLM

    config = hf_config(Path(directory))
    with telling(Path(directory), "make the model of"), torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return model


def hf_pieces(directory: str) -> Iterator[Piece]:
    """Every parameter as a piece of its own, by its name in transformers; tied ones once."""
    for name, each in skeleton(directory).named_parameters():
        yield Piece(name=name, parameter=name, shape=tuple(each.shape))
