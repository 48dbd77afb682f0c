"""On a GPU in bfloat16: fast attention, compiled layers and the fused head give what the references give."""

import pytest
import torch
from torch import Tensor

from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import DefaultRope, ModelConfig
from dora_rl.model.head_loss import head_loss
from dora_rl.model.logprobs import token_logprobs
from dora_rl.model.packed_sequences import pack
from dora_rl.model.tiny import seeded_decoder
from dora_rl.model.varlen import attention_over

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # The compiler warns about parts of torch that it uses itself.
    pytest.mark.filterwarnings("ignore"),
]

SHAPE = ModelConfig(
    family="qwen3",
    vocab_size=5003,
    hidden_size=256,
    intermediate_size=512,
    num_layers=3,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    max_positions=2048,
    norm_eps=1e-6,
    rope=DefaultRope(theta=1e4),
    is_tied=True,
)


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("kind", ["varlen", "flex"])
def test_attention_is_that_of_each_sequence_alone(kind: str, window: int | None) -> None:
    packed = pack([list(range(n)) for n in (1, 700, 33, 128)], "cuda")
    shapes = [(len(packed.tokens_T), heads, 64) for heads in (8, 4, 4)]
    heads = [torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for shape in shapes]
    ours, theirs = (
        attention(0, *heads, window)
        for attention in (
            attention_over(packed, torch.bfloat16, kind),  # type: ignore[arg-type]
            PackedAttention(packed.lengths),
        )
    )
    assert error(ours, theirs) < 0.01
    grad = torch.randn_like(ours)
    for one, other in zip(
        torch.autograd.grad(ours, heads, grad), torch.autograd.grad(theirs, heads, grad), strict=True
    ):
        assert error(one, other) < 0.02


def test_compiled_layers_and_fused_head_give_the_reference_gradient() -> None:
    sequences = [[(7 * i + n) % 5003 for i in range(n)] for n in (40, 300, 9)]
    gradients = []
    for is_fast in (False, True):
        decoder = seeded_decoder(SHAPE, seed=0).cuda()
        if is_fast:
            decoder = decoder.bfloat16()
            decoder.fuse()
        packed = pack(sequences, "cuda")
        attention = attention_over(packed, decoder.head_VH.dtype)
        hidden = decoder(packed.tokens_T, packed.positions_T, attention)
        weights = torch.linspace(-1, 1, len(hidden), device="cuda")

        def loss_of(logprobs: Tensor, entropy: Tensor, rows: slice, weights: Tensor = weights) -> Tensor:
            return (weights[rows] * (logprobs + 0.1 * entropy)).sum()

        targets = packed.tokens_T.roll(-1)
        loss = head_loss(
            hidden, decoder.head_VH, targets, counts=packed.lengths, loss_of=loss_of, block_tokens=320
        )
        loss.backward()
        gradients.append([parameter.grad for parameter in decoder.parameters()])
    for exact, fast in zip(*gradients, strict=True):
        assert exact is not None
        assert fast is not None
        assert error(fast, exact) < 0.05


def test_half_precision_logprobs_are_the_float32_ones() -> None:
    hidden = torch.randn(300, 256, device="cuda").bfloat16()
    head = torch.randn(5003, 256, device="cuda").bfloat16()
    targets = torch.randint(0, 5003, (300,), device="cuda")
    ours = token_logprobs(hidden, head, targets, temperature=0.8)
    theirs = token_logprobs(hidden.float(), head.float(), targets, temperature=0.8)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
