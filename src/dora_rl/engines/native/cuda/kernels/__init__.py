"""Triton kernels and the calls that launch them, one module an idea.

Each launcher takes tensors whose shapes it trusts and allocates nothing, so all of them can be captured in a
CUDA graph. Under Triton's interpreter they run on the CPU, which is how they are tested without a GPU.

overlap          starting before the kernel before is over
embed            tokens, or what their slot drew last, to rows of the embedding
norm             residual addition and RMS norm
linear           products of one or two rows, with norm, gate and residual in the same kernel
tiled            products of some dozens of rows, split so that they occupy the device
fixed            products whose bits do not depend on how many rows there are
rotary           norm and rotation of queries and keys, keys and values to the cache
decode           attention of one token a row over a paged context, split where it pays
prefill          attention of chunks of prompts
activation       the gate of an MLP
router           which experts a token goes to, and rows sorted by expert
expert_products  products of rows with their own expert
expert_rows      the experts of one or two rows, norm, gate and residual inside
gumbel_draw      Gumbel draws and their log-probabilities
"""
