"""The native engine on a GPU: the same plans, carried out by captured graphs of Triton kernels.

cuda_backend   what the engine is told about this device
cuda_executor  a plan to launches, and launches to answers
lane           one stream of passes, with buffers and graphs of its own
plan_order     what a plan on one lane must come behind
plan_buffers   a plan as the integers kernels read
graphs         launches captured once and replayed
places         memory at fixed addresses for the weights of each resident version
trunk          the layers of the decoder over a batch of tokens
mixture        the experts of a layer
tiles          how products are cut, and what a tuning run found best
tile_search    the tuning run
head           logits and draws
cache          keys and values in blocks
slots          how each slot draws
kernels        one module an idea
"""

from dora_rl.engines.native.cuda.cuda_backend import CUDA

__all__ = ["CUDA"]
