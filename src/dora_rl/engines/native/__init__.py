"""The native engine: the decoder over a paged cache, in this process.

kind      sized and opened for an instance
sizing    how large it may be
opening   an engine from a model directory, for use without a run
engine    the protocol over a scheduler and an executor
intake    what it lets in
setup     its configuration, checked against memory before anything is allocated
backend   what it asks of a device
executor  carries out a plan on the CPU
packed    a version laid out for products of few rows
experts   experts in batch-invariant mode
passes    from a plan to calls of the decoder
tables    where the sequence of each slot lies
paged     keys and values in blocks, and attention over them
sampling  draws and their log-probabilities
philox    keyed noise in integer operations
versions  resident weight sets
residents versions from the store, read while it generates
deltas    changes to one
transfer  a live request as tensors or bytes
"""
