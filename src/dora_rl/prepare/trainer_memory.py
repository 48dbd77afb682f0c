"""The memory a trainer will need: exact where tensors are counted, else an estimate."""

from collections import Counter
from collections.abc import Iterator
from math import prod

from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.model.config import ModelSizes
from dora_rl.model.language_model import pieces_of
from dora_rl.trainer.lora import target_pieces

_FLOAT, _MOMENTS = 4, 8
_BLOCK_TOKENS = 8192
"""Tokens whose logits are in memory at a time."""


def num_parameters(model: ModelSizes) -> int:
    """The number of parameters of the model."""
    return sum(prod(piece.shape) for piece in pieces_of(model))


def item_bytes(config: TrainerConfig) -> int:
    """Bytes of one parameter of a published version."""
    return 2 if config.serving_dtype == "bfloat16" else _FLOAT


def num_trained(model: ModelSizes, config: TrainerConfig) -> int:
    """The number of parameters that the optimizer changes."""
    if config.lora is None:
        return num_parameters(model)
    return sum(config.lora.rank * sum(piece.shape) for piece in target_pieces(model, config.lora))


def trainer_bytes(
    model: ModelSizes, config: TrainerConfig, *, pass_tokens: int, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[str, int, bool]]:
    """What a rank of the trainer holds: each part, its bytes, and whether that is an estimate.

    `pass_tokens` are the most tokens that may go through the model at once.
    """
    is_sharded = ranks > 1 and config.lora is None
    yield from _sharded_bytes(model, config, ranks) if is_sharded else _own_bytes(model, config)
    version = item_bytes(config) * num_parameters(model)
    if config.algorithm.kl is not None:
        yield "reference model", version, False
    if config.kept_versions:
        yield f"{config.kept_versions} kept versions", config.kept_versions * version, False
    if rank == 0:
        if is_sharded:
            yield "version to publish", version, False
        yield "last published version", version, False
    yield "activations", activation_bytes(model, config, pass_tokens), True


def checkpoint_bytes(model: ModelSizes, config: TrainerConfig) -> int:
    """Bytes of a checkpoint gathered in host memory: masters, moments, served weights, kept versions."""
    version = item_bytes(config) * num_parameters(model)
    return (_FLOAT + _MOMENTS) * num_trained(model, config) + (1 + config.kept_versions) * version


def _own_bytes(model: ModelSizes, config: TrainerConfig) -> Iterator[tuple[str, int, bool]]:
    """Bytes of weights, gradients and moments where every rank has all of them."""
    total, trained, item = num_parameters(model), num_trained(model, config), item_bytes(config)
    if config.lora is not None:
        bases = sum(prod(piece.shape) for piece in target_pieces(model, config.lora))
        yield "weights", item * total + _FLOAT * bases, False
    elif item != _FLOAT:
        yield "serving weights", item * total, False
    yield "master weights", _FLOAT * trained, False
    yield "gradients", _FLOAT * trained, False
    yield "moments of AdamW", _MOMENTS * trained, False


def _sharded_bytes(model: ModelSizes, config: TrainerConfig, ranks: int) -> Iterator[tuple[str, int, bool]]:
    """Bytes of weights, gradients and moments on one of several ranks: each tensor is split by rows."""
    total = num_parameters(model)
    own = -(-total // ranks)
    yield "master weights", _FLOAT * own, True
    yield "gradients", _FLOAT * own, True
    yield "moments of AdamW", _MOMENTS * own, True
    yield "layers put together", _gathered_bytes(model, config), True
    # Masters are read whole before they are split; gradients and moments come later.
    room = _FLOAT * total - (2 * _FLOAT + _MOMENTS) * own
    if room > 0:
        yield "room to load", room, True


def _gathered_bytes(model: ModelSizes, config: TrainerConfig) -> int:
    """Bytes of what is whole at a time: embedding, head, a layer and the one fetched ahead, and gradients."""
    units: Counter[str] = Counter()
    for piece in pieces_of(model):
        first, second, *_ = piece.parameter.split(".")
        units[f"layer {second}" if first == "layers" else "rest"] += prod(piece.shape)
    rest = units.pop("rest")
    return (item_bytes(config) + _FLOAT) * (rest + 2 * max(units.values()))


def activation_bytes(model: ModelSizes, config: TrainerConfig, tokens: int) -> int:
    """Bytes of one micro-batch: what layers keep for backward, and a block of logits with its gradient."""
    item = item_bytes(config)
    inner = (
        model.experts.num_active * model.experts.intermediate_size
        if model.experts
        else model.intermediate_size
    )
    # Of a token: two normed inputs and their sums, q, k, v, attention's output, gate, up, their product.
    layer = item * (6 * model.hidden_size + 3 * model.q_size + 3 * model.kv_size + 4 * inner)
    kept = (
        layer + model.num_layers * item * model.hidden_size
        if config.gradient_checkpointing
        else model.num_layers * layer
    )
    logits = 3 * _FLOAT * min(tokens, _BLOCK_TOKENS) * model.vocab_size
    return tokens * kept + logits
