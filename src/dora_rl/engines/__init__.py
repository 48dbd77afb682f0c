"""Engines that turn prompts into trajectories under several policy versions at once.

protocol       what a worker needs of an engine, what an engine says it can do, and how a kind opens one
requests       what is asked of an engine, and what it answers: plain data
config         how large an engine is
kinds          engines by name
streams        the random stream of a request, from its key
decode_clock   how fast an engine goes, in rounds
memory_ledger  the one ledger of device and host memory
native         the engine that runs the decoder itself
vllm           vLLM's engine, in the instance's process

Only the engines themselves know torch.
"""
