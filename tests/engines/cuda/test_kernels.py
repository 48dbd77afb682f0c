"""Every kernel against the arithmetic it stands for, in float32."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.engines.native.cuda.kernels.activation import gated
from dora_rl.engines.native.cuda.kernels.decode import Split, SplitSums, decode_attention
from dora_rl.engines.native.cuda.kernels.embed import FROM_SLOT, embed
from dora_rl.engines.native.cuda.kernels.expert_products import expert_linear
from dora_rl.engines.native.cuda.kernels.expert_rows import expert_down, expert_gate_up
from dora_rl.engines.native.cuda.kernels.fixed import fixed_linear
from dora_rl.engines.native.cuda.kernels.gumbel_draw import Distributions, Pieces, draw
from dora_rl.engines.native.cuda.kernels.library import library_linear
from dora_rl.engines.native.cuda.kernels.linear import linear
from dora_rl.engines.native.cuda.kernels.norm import add_norm
from dora_rl.engines.native.cuda.kernels.prefill import prefill_attention, stretch_tokens
from dora_rl.engines.native.cuda.kernels.rotary import Heads, Paging, Turning, rotate_and_store
from dora_rl.engines.native.cuda.kernels.router import Routing, choose_experts, most_tiles, sort_by_expert
from dora_rl.engines.native.cuda.kernels.tiled import tiled_linear
from dora_rl.engines.native.cuda.tiles import Tile
from dora_rl.engines.native.philox import gumbel
from dora_rl.model.config import DefaultRope
from dora_rl.model.rope import Rotary, rotate

EPS = 1e-6
ROPE = DefaultRope(theta=10_000.0)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def normed(values: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(values, weight.shape, weight, EPS)


def test_a_token_not_yet_known_is_the_one_its_slot_drew(device: str) -> None:
    table = torch.randn(50, 24, device=device)
    tokens = torch.tensor([3, FROM_SLOT, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([0, 2, 1], dtype=torch.int32, device=device)
    drawn = torch.tensor([9, 8, 41], dtype=torch.int32, device=device)
    out = torch.full((3, 24), torch.nan, device=device)
    embed(tokens, slots, drawn, table, out)
    assert out.equal(table[[3, 41, 7]])


@pytest.mark.parametrize("has_change", [False, True])
def test_norm(device: str, has_change: bool) -> None:
    residual, change, weight = (torch.randn(*size, device=device) for size in ((5, 40), (5, 40), (40,)))
    expected = residual + change if has_change else residual.clone()
    out = torch.full_like(residual, torch.nan)
    add_norm(residual, change if has_change else None, weight, EPS, out)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(out, normed(expected, weight))


def test_gate(device: str) -> None:
    gate_up, out = torch.randn(3, 80, device=device), torch.full((3, 40), torch.nan, device=device)
    gated(gate_up, out)
    torch.testing.assert_close(out, functional.silu(gate_up[:, :40]) * gate_up[:, 40:])


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("part", ["plain", "norm and bias", "residual", "norm and gate"])
def test_linear(device: str, num_rows: int, part: str) -> None:
    num_inputs, num_outputs = 72, 40
    inputs, norm = torch.randn(num_rows, num_inputs, device=device), torch.randn(num_inputs, device=device)
    weight = torch.randn(num_outputs * (2 if part == "norm and gate" else 1), num_inputs, device=device)
    bias, out = torch.randn(num_outputs, device=device), torch.randn(num_rows, num_outputs, device=device)
    match part:
        case "plain":
            expected = inputs @ weight.T
            linear(inputs, weight, out)
        case "norm and bias":
            expected = normed(inputs, norm) @ weight.T + bias
            linear(inputs, weight, out, bias_O=bias, norm_I=norm, eps=EPS)
        case "residual":
            expected = out + inputs @ weight.T
            linear(inputs, weight, out, residual_TO=out)
        case _:
            first, second = (normed(inputs, norm) @ weight.T).chunk(2, dim=1)
            expected = functional.silu(first) * second
            linear(inputs, weight, out, norm_I=norm, eps=EPS, is_gated=True)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_parts_of_products_add_up_in_the_norm(device: str, num_parts: int) -> None:
    inputs, weight = torch.randn(19, 72, device=device), torch.randn(40, 72, device=device)
    bias, norm, residual = (torch.randn(*size, device=device) for size in ((40,), (40,), (19, 40)))
    parts = torch.full((num_parts, 19, 40), torch.nan, device=device)
    tiled_linear(inputs, weight, parts, bias_O=bias)
    expected, out = residual + inputs @ weight.T + bias, torch.empty_like(residual)
    add_norm(residual, parts, norm, EPS, out)
    torch.testing.assert_close(residual, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, normed(expected, norm), rtol=1e-4, atol=1e-4)


def test_parts_of_the_library_add_up_in_the_norm(device: str) -> None:
    inputs, weight = torch.randn(70, 72, device=device), torch.randn(40, 72, device=device)
    norm, residual = torch.randn(40, device=device), torch.randn(70, 40, device=device)
    parts = torch.full((3, 70, 40), torch.nan, device=device)
    library_linear(inputs, weight, parts)
    torch.testing.assert_close(parts[1], inputs[:, 24:48] @ weight[:, 24:48].T, rtol=1e-4, atol=1e-4)
    expected, out = residual + inputs @ weight.T, torch.empty_like(residual)
    add_norm(residual, parts, norm, EPS, out)
    torch.testing.assert_close(residual, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, normed(expected, norm), rtol=1e-4, atol=1e-4)


def test_gate_of_a_tiled_product(device: str) -> None:
    inputs, weight = torch.randn(19, 72, device=device), torch.randn(80, 72, device=device)
    out = torch.full((19, 40), torch.nan, device=device)
    tiled_linear(inputs, weight, out, is_gated=True)
    first, second = (inputs @ weight.T).chunk(2, dim=1)
    torch.testing.assert_close(out, functional.silu(first) * second, rtol=1e-4, atol=1e-4)


def test_fixed_products_do_not_depend_on_the_other_rows(device: str) -> None:
    inputs, weight = torch.randn(70, 72, device=device), torch.randn(100, 72, device=device)
    bias = torch.randn(100, device=device)
    whole, part = torch.empty(70, 100, device=device), torch.empty(1, 100, device=device)
    fixed_linear(inputs, weight, whole, bias)
    torch.testing.assert_close(whole, inputs @ weight.T + bias, rtol=1e-4, atol=1e-4)
    for row in (0, 37, 69):
        fixed_linear(inputs[row : row + 1], weight, part, bias)
        assert part.equal(whole[row : row + 1])


class Attending:
    """Sequences of some length in a paged cache, whose last tokens are to be computed."""

    def __init__(
        self, device: str, *, heads: Heads, lengths: list[int], has_norm: bool, block_size: int = 8
    ) -> None:
        self.heads, self.lengths, self.device = heads, lengths, device
        width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        self.qkv = [torch.randn(length, width, device=device) for length in lengths]
        norms = [torch.rand(heads.head_dim, device=device) + 0.5 if has_norm else None for _ in range(2)]
        rotation = Rotary(ROPE, heads.head_dim).rotation(torch.arange(256, device=device))
        self.turning = Turning(
            cos_PD=rotation.cos.squeeze(1),
            sin_PD=rotation.sin.squeeze(1),
            q_norm_D=norms[0],
            k_norm_D=norms[1],
        )
        blocks_each = 256 // block_size
        order = torch.randperm(len(lengths) * blocks_each, dtype=torch.int32) + 1
        self.tables = order.view(len(lengths), blocks_each).to(device)
        size = (len(order) + 1, heads.num_kv_heads, 2, block_size, heads.head_dim)
        self.cache = torch.randn(size, device=device)

    def paging(self, slots: list[int], positions: list[int]) -> Paging:
        return Paging(
            cache=self.cache,
            tables_SB=self.tables,
            slots_T=torch.tensor(slots, dtype=torch.int32, device=self.device),
            positions_T=torch.tensor(positions, dtype=torch.int32, device=self.device),
        )

    def store(self, slot: int, positions: range) -> Tensor:
        """Put these tokens of a sequence into the cache; return them with their queries turned."""
        qkv = self.qkv[slot][positions.start : positions.stop].clone()
        paging = self.paging([slot] * len(positions), list(positions))
        if len(positions):
            rotate_and_store(qkv, self.heads, self.turning, paging)
        return qkv

    def expected(self, slot: int) -> Tensor:
        """Attention of every token of a sequence, written down directly."""
        heads, qkv = self.heads, self.qkv[slot]
        sizes = [heads.num_heads * heads.head_dim, *[heads.num_kv_heads * heads.head_dim] * 2]
        q, k, v = (part.unflatten(1, (-1, heads.head_dim)) for part in qkv.split(sizes, dim=1))
        if self.turning.q_norm_D is not None and self.turning.k_norm_D is not None:
            q, k = normed(q, self.turning.q_norm_D), normed(k, self.turning.k_norm_D)
        rotation = Rotary(ROPE, heads.head_dim).rotation(torch.arange(len(qkv), device=self.device))
        q, k = rotate(q, rotation), rotate(k, rotation)
        mixed = functional.scaled_dot_product_attention(
            *(each.transpose(0, 1)[None] for each in (q, k, v)), is_causal=True, enable_gqa=True
        )
        return mixed[0].transpose(0, 1).flatten(1)


SHAPES = [
    Heads(num_heads=4, num_kv_heads=2, head_dim=16, eps=EPS),
    Heads(num_heads=3, num_kv_heads=1, head_dim=24, eps=EPS),
]


SPLITS = [Split(), Split(most=4), Split(most=8, fixed=32)]
QUICK = {(SHAPES[0], True, SPLITS[1], True), (SHAPES[1], False, SPLITS[2], False)}
DECODES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in product(SHAPES, (False, True), SPLITS, (False, True))
]


@pytest.mark.parametrize(("heads", "has_norm", "split", "is_fused"), DECODES)
def test_decode_attention(device: str, heads: Heads, has_norm: bool, split: Split, is_fused: bool) -> None:
    lengths = [1, 2, 33, 200, 64]
    case = Attending(device, heads=heads, lengths=lengths, has_norm=has_norm)
    lasts = []
    for slot, length in enumerate(lengths):
        case.store(slot, range(length - 1))
        lasts.append(case.qkv[slot][-1:] if is_fused else case.store(slot, range(length - 1, length)))
    qkv, slots, positions = torch.cat(lasts), list(range(len(lengths))), [length - 1 for length in lengths]
    out = torch.full((len(lengths), heads.num_heads * heads.head_dim), torch.nan, device=device)
    parts = SplitSums.empty(len(lengths), split.most, heads, device)
    for _ in range(2):  # Twice: what counts arrivals must be as it was.
        args = (qkv, out, heads, case.turning, case.paging(slots, positions), parts, split)
        decode_attention(*args, is_fused=is_fused)
        for slot in slots:
            torch.testing.assert_close(out[slot], case.expected(slot)[-1], rtol=1e-4, atol=1e-4)
    assert not parts.arrivals.any()


@pytest.mark.parametrize("heads", [SHAPES[0], pytest.param(SHAPES[1], marks=pytest.mark.slow)])
def test_prefill_attention_of_chunks_in_the_middle(device: str, heads: Heads) -> None:
    lengths, starts = [130, 7, 70], [0, 3, 40]
    case = Attending(device, heads=heads, lengths=lengths, has_norm=True)
    tokens, slots, positions, stretches, first = [], [], [], [], 0
    for slot, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        case.store(slot, range(start))
        tokens.append(case.store(slot, range(start, length)))
        slots += [slot] * (length - start)
        positions += range(start, length)
        size = stretch_tokens(heads)
        stretches += [(first + at, min(size, length - start - at)) for at in range(0, length - start, size)]
        first += length - start
    out = torch.full((first, heads.num_heads * heads.head_dim), torch.nan, device=device)
    list_N2 = torch.tensor([*stretches, (0, 0)], dtype=torch.int32, device=device)
    prefill_attention(torch.cat(tokens), out, heads, case.paging(slots, positions), list_N2)
    expected = torch.cat([case.expected(slot)[start:] for slot, start in enumerate(starts)])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_experts_are_the_heaviest_and_the_first_of_equals(
    device: str, num_parts: int, is_normalised: bool
) -> None:
    scores = torch.randn(num_parts, 9, 5, device=device)
    scores[:, 4] = 0.25  # All alike.
    weights = torch.full((9, 2), torch.nan, device=device)
    given = scores[0] if num_parts == 1 else scores
    chosen = torch.full((9, 2), -1, dtype=torch.int32, device=device)
    choose_experts(given, scores, weights, chosen, is_normalised=is_normalised)
    shares, expected = scores.sum(0).softmax(1).topk(2, dim=1)
    expected[4] = torch.tensor([0, 1])
    assert chosen.tolist() == expected.tolist()
    torch.testing.assert_close(weights, shares / shares.sum(1, keepdim=True) if is_normalised else shares)


def test_scores_that_are_no_numbers_choose_experts_that_exist(device: str) -> None:
    scores = torch.full((2, 5), torch.nan, device=device)
    weights = torch.zeros(2, 3, device=device)
    experts = torch.full((2, 3), -1, dtype=torch.int32, device=device)
    choose_experts(scores, scores, weights, experts, is_normalised=True)
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert weights.isnan().all()


def routed(experts_TA: Tensor, num_experts: int, num_rows: int) -> Routing:
    num_pairs = experts_TA.numel()
    order = torch.full((num_pairs,), -1, dtype=torch.int32, device=experts_TA.device)
    num_tiles = most_tiles(num_pairs, num_experts, num_rows)
    tiles = torch.full((num_tiles, 3), -1, dtype=torch.int32, device=experts_TA.device)
    return sort_by_expert(experts_TA, num_experts, num_rows, order, tiles)


@pytest.mark.parametrize("num_tokens", [1, 37, 700])
def test_tiles_hold_every_row_of_an_expert_once(device: str, num_tokens: int) -> None:
    # Nobody goes to the last; more pairs than a program looks at at once.
    experts = torch.stack([torch.randperm(4)[:2] for _ in range(num_tokens)]).int().to(device)
    routing = routed(experts, 5, 16)
    found = [[], [], [], [], []]
    for expert, first, size in routing.tiles_M3.tolist():
        assert 0 <= size <= 16
        if size:
            found[expert] += routing.order_N[first : first + size].tolist()
    flat = experts.flatten()
    assert found == [(flat == expert).nonzero().flatten().tolist() for expert in range(5)]


@pytest.mark.parametrize("is_gated", [False, True])
def test_rows_meet_their_own_expert(device: str, is_gated: bool) -> None:
    inputs, weight = torch.randn(37, 72, device=device), torch.randn(5, 80, 72, device=device)
    experts = torch.stack([torch.randperm(4)[:2] for _ in range(37)]).int().to(device)
    tile = Tile(rows=16, outputs=32, inputs=32, warps=4, stages=2)
    out = torch.full((74, 40 if is_gated else 80), torch.nan, device=device)
    expert_linear(inputs, weight, routed(experts, 5, 16), out, tile, is_gated=is_gated)
    expected = torch.stack(
        [weight[expert] @ inputs[pair // 2] for pair, expert in enumerate(experts.flatten())]
    )
    if is_gated:
        expected = functional.silu(expected[:, :40]) * expected[:, 40:]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_rows", [1, 2])
def test_experts_of_few_rows(device: str, num_rows: int) -> None:
    residual, norm = torch.randn(num_rows, 72, device=device), torch.randn(72, device=device)
    scores = torch.randn(num_rows, 5, device=device)
    gate_up, down = torch.randn(5, 80, 72, device=device), torch.randn(5, 72, 40, device=device)
    shares = torch.full((num_rows, 2), torch.nan, device=device)
    experts = torch.full((num_rows, 2), -1, dtype=torch.int32, device=device)
    inner = torch.full((num_rows * 2, 40), torch.nan, device=device)
    expert_gate_up(residual, norm, EPS, scores, gate_up, shares, experts, inner, is_normalised=True)
    expected_shares, expected_experts = scores.softmax(1).topk(2, dim=1)
    expected_shares /= expected_shares.sum(1, keepdim=True)
    assert experts.tolist() == expected_experts.tolist()
    torch.testing.assert_close(shares, expected_shares)
    expected = residual.clone()
    for row, rank in product(range(num_rows), range(2)):
        expert = expected_experts[row, rank]
        first, second = (gate_up[expert] @ normed(residual, norm)[row]).chunk(2)
        expected[row] += shares[row, rank] * (down[expert] @ (functional.silu(first) * second))
    expert_down(inner, down, shares, experts, residual)
    torch.testing.assert_close(residual, expected, rtol=1e-4, atol=1e-3)


def test_norm_adds_rows_by_their_shares(device: str) -> None:
    residual, rows, weight = (torch.randn(*size, device=device) for size in ((5, 40), (5, 3, 40), (40,)))
    shares = torch.rand(5, 3, device=device)
    expected, out = residual + (rows * shares[..., None]).sum(1), torch.full_like(residual, torch.nan)
    add_norm(residual, rows, weight, EPS, out, shares_TA=shares)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(out, normed(expected, weight))


@pytest.mark.parametrize("num_rows", [1, 2])
def test_more_inputs_than_registers_hold(device: str, num_rows: int) -> None:
    inputs, weight = torch.randn(num_rows, 9000, device=device), torch.randn(6, 9000, device=device) / 100
    bias, out = torch.randn(6, device=device), torch.randn(num_rows, 6, device=device)
    expected = out + inputs @ weight.T + bias
    linear(inputs, weight, out, bias_O=bias, residual_TO=out)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_draws_are_those_of_the_reference(device: str) -> None:
    num_rows, vocab_size = 6, 9001
    logits = torch.randn(num_rows, vocab_size, device=device) * 3
    temperature = torch.tensor([1.0, 0.7, 1.3, 1.0], device=device)
    greedy = torch.tensor([0, 0, 0, 1], dtype=torch.int32, device=device)
    streams = torch.randint(0, 2**32, (4, 4), device=device)
    drawn = torch.zeros(4, dtype=torch.int32, device=device)
    slots = torch.tensor([0, 1, 2, 3, 0, 1], dtype=torch.int32, device=device)
    positions = torch.tensor([5, 6, 70_000, 8, 9, 10], dtype=torch.int32, device=device)
    tokens = torch.zeros(num_rows, dtype=torch.int32, device=device)
    logprobs = torch.zeros(num_rows, device=device)
    how = Distributions(temperature_S=temperature, is_greedy_S=greedy, streams_S4=streams, drawn_S=drawn)
    draw(logits, slots, positions, how, Pieces.empty(num_rows, vocab_size, device), tokens, logprobs)
    scaled = logits / temperature[slots][:, None]
    noise = gumbel(streams[slots], positions.long(), vocab_size).masked_fill(greedy[slots, None] == 1, 0)
    expected = (scaled + noise).argmax(dim=1)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, scaled.log_softmax(1).gather(1, expected[:, None]).squeeze(1))
    assert drawn[3] == tokens[3]
