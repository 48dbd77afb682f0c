"""Which tiles are quickest for a model's experts on this device, and which split for the library's products:
tried out, and kept for runs to come.

`python -m dora_rl.engines.native.cuda.tile_search CONFIG.JSON` takes a quarter of a minute, most of it
compiling. What it found is in one file (see `tiles`); to forget it, delete the file.
"""

import sys
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
import triton
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.expert_products import expert_linear
from dora_rl.engines.native.cuda.kernels.library import MAX_PARTS, library_linear, splits_evenly, usual_parts
from dora_rl.engines.native.cuda.kernels.norm import add_norm
from dora_rl.engines.native.cuda.kernels.router import most_tiles, sort_by_expert
from dora_rl.engines.native.cuda.mixture import usual_tiles
from dora_rl.engines.native.cuda.tiles import (
    ExpertTiles,
    Tile,
    TileChoices,
    choices,
    choices_file,
    experts_key,
    split_key,
)
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.hub_config import read_config

_SIZES = ((64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 3), (128, 64, 8, 4))
"""Tile sizes to try: outputs, inputs, warps and stages."""
_TOKENS = (16, 64, 256)
"""Numbers of tokens decoded at once to tune experts for."""
_SPLIT_ROWS = (64, 128, 192, 256, 320, 384)
"""Numbers of rows to tune splits for."""
_CACHE_BYTES = 150 * 2**20
"""Bytes of matrices that one after the other are not in the cache when their turn comes."""
_SHARED_BYTES = 220_000
_WORTH = 0.97
"""Share of the usual tile's time that a better one must stay below: less is noise."""

Say = Callable[[str], None]
Choice = TypeVar("Choice", bound=Hashable)


def tune(model: ModelConfig, say: Say) -> TileChoices:
    """Find the best tiles and splits for a model in bfloat16, added to those known before."""
    known = choices()
    return TileChoices(
        experts=known.experts | dict(_expert_choices(model, say)),
        splits=known.splits | dict(_split_choices(model, say)),
    )


def keep(found: TileChoices) -> Path:
    """Write the tile choices where runs look; whoever reads meanwhile sees the old or the new file."""
    path = choices_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    beside.replace(path)
    choices.cache_clear()
    return path


def _expert_choices(model: ModelConfig, say: Say) -> Iterator[tuple[str, ExpertTiles]]:
    if (experts := model.experts) is None:
        return
    gate_up = _random(experts.num_experts, 2 * experts.intermediate_size, model.hidden_size)
    down = _random(experts.num_experts, model.hidden_size, experts.intermediate_size)
    for num_tokens in _TOKENS:
        num_pairs = num_tokens * experts.num_active
        usual = usual_tiles(num_pairs, experts.num_experts)
        timed = [
            _experts_at(rows, usual, experts, num_tokens, gate_up, down)
            for rows in {usual.gate.rows, min(128, 2 * usual.gate.rows)}
        ]
        # The usual rows, unless others are clearly quicker.
        timed.sort(key=lambda each: each[1] * (_WORTH if each[0].gate.rows == usual.gate.rows else 1.0))
        best, took = timed[0]
        key = experts_key(num_pairs, experts.num_experts, experts.intermediate_size, model.hidden_size)
        say(f"{key}: {took:.1f} us, {best}")
        yield key, best


def _experts_at(
    rows: int, usual: ExpertTiles, experts: Experts, num_tokens: int, gate_up: Tensor, down: Tensor
) -> tuple[ExpertTiles, float]:
    """The quickest tiles of so many rows, and the time of both products."""
    chosen = torch.rand(num_tokens, experts.num_experts, device="cuda").topk(experts.num_active).indices.int()
    num_pairs = chosen.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device="cuda")
    num_tiles = most_tiles(num_pairs, experts.num_experts, rows)
    tiles = torch.empty(num_tiles, 3, dtype=torch.int32, device="cuda")
    routing = sort_by_expert(chosen, experts.num_experts, rows, order, tiles)
    values, inner = _random(num_tokens, gate_up.shape[2]), _random(num_pairs, down.shape[2])
    out = _random(num_pairs, down.shape[1])
    is_usual = rows == usual.gate.rows
    gate, gate_took = _best(
        lambda tile: expert_linear(values, gate_up, routing, inner, tile, is_gated=True),
        [*([usual.gate] if is_usual else []), *_candidates(rows, is_gated=True)],
        _took_us,
    )
    own, down_took = _best(
        lambda tile: expert_linear(inner, down, routing, out, tile),
        [*([usual.down] if is_usual else []), *_candidates(rows, is_gated=False)],
        _took_us,
    )
    return ExpertTiles(gate=gate, down=own), gate_took + down_took


def _candidates(rows: int, *, is_gated: bool) -> Iterator[Tile]:
    for outputs, inputs, warps, stages in _SIZES:
        lines = (2 if is_gated else 1) * outputs + rows
        if 2 * lines * inputs * stages <= _SHARED_BYTES:
            yield Tile(rows=rows, outputs=outputs, inputs=inputs, warps=warps, stages=stages)


def _split_choices(model: ModelConfig, say: Say) -> Iterator[tuple[str, int]]:
    """The best number of parts of each product that is added to the residual."""
    inners = {model.q_size}
    if any(model.experts_of(layer) is None for layer in range(model.num_layers)):
        inners.add(model.intermediate_size)
    for num_inputs in inners:
        num_copies = min(64, -(-_CACHE_BYTES // (2 * model.hidden_size * num_inputs)))
        weights = [_random(model.hidden_size, num_inputs) for _ in range(num_copies)]
        for num_rows in _SPLIT_ROWS:
            size = (num_rows, model.hidden_size, num_inputs)
            others = (each for each in range(1, MAX_PARTS + 1) if splits_evenly(num_inputs, each))
            tried = list(dict.fromkeys([usual_parts(*size), *others]))
            best, took = _best(_split_products(num_rows, weights), tried, _captured_us)
            say(f"{split_key(*size)}: {took / num_copies:.1f} us in parts: {best}")
            yield split_key(*size), best


def _split_products(num_rows: int, weights_OI: list[Tensor]) -> Callable[[int], None]:
    """Products with one matrix after the other in so many parts, each with the norm that adds them up."""
    num_outputs, num_inputs = weights_OI[0].shape
    inputs, parts = _random(num_rows, num_inputs), _random(MAX_PARTS, num_rows, num_outputs)
    residual, normed, norm = (_random(*size) for size in ((num_rows, num_outputs),) * 2 + ((num_outputs,),))

    def run(num_parts: int) -> None:
        out = parts[:num_parts] if num_parts > 1 else parts[0]
        for weight in weights_OI:
            library_linear(inputs, weight, out)
            add_norm(residual, out, norm, 1e-6, normed)

    return run


def _best(
    run: Callable[[Choice], None], tried: list[Choice], took_us: Callable[[Callable[[], None]], float]
) -> tuple[Choice, float]:
    """The quickest candidate and its microseconds, cold caches; the first unless another clearly wins."""
    took = {each: took_us(partial(run, each)) for each in tried}
    best = min(took, key=lambda each: took[each])
    best = best if took[best] < _WORTH * took[tried[0]] else tried[0]
    return best, took[best]


def _took_us(run: Callable[[], None]) -> float:
    return 1e3 * float(triton.testing.do_bench(run, warmup=5, rep=30, return_mode="median"))


def _captured_us(run: Callable[[], None]) -> float:
    """Microseconds of launches as a graph, which do not wait for the host."""
    return 1e3 * float(triton.testing.do_bench_cudagraph(run, rep=10, return_mode="median"))


def _random(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.bfloat16, device="cuda") / 50


if __name__ == "__main__":
    print(keep(tune(read_config(Path(sys.argv[1])), print)))
