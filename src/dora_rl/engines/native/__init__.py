"""The native engine: the decoder over a paged cache, in this process.

kind             sized and opened for an instance
engine_size      how large it may be
engine_factory   an engine from a model directory, for use without a run
native_engine    the protocol over a scheduler and an executor
intake           what it lets in
engine_memory    its configuration, checked against memory before anything is allocated
backend          what it asks of a device
cpu_executor     carries out a plan on the CPU
packed_linear    a version laid out for products of few rows
tiled_experts    experts in batch-invariant mode
passes           from a plan to calls of the decoder
block_tables     where the sequence of each slot lies
paged            keys and values in blocks, and attention over them
sampler          draws and their log-probabilities
philox           keyed noise in integer operations
served_versions  resident weight sets
deltas           changes to one
transfer         a live request as tensors or bytes
"""
