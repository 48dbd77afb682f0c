"""Rollout: engines that turn prompts into trajectories under several policy versions at once.

requests    what is asked of an engine, and what it answers: plain data
seam        the three protocols every engine speaks, and what an engine says it can do
streams     the random stream of a request, from its key
memory      the one ledger of device and host memory
scheduling  which request computes what in the next step, and in which blocks: no tensors
native      the engine that runs the decoder itself

Only `native` knows torch.
"""
