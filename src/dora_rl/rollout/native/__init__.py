"""The native engine: the decoder over a paged cache, in this process.

engine    the three protocols over a scheduler and an executor
executor  carries out a plan on the CPU
paged     keys and values in blocks, and attention over them
sampling  draws and their log-probabilities
philox    keyed noise in integer operations
versions  resident weight sets
transfer  a live request as tensors or bytes
"""
