"""One section of the benchmark a module: each a function from a setup to figures.

table      tokens a second by workload, against vLLM and the roofline
invariant  what batch-invariant mode costs
versions   what resident versions cost
weights    how long a new version takes to arrive
migrate    moving a request against computing its KV again
host       the scheduler's time for a row, without a device
cpu        a real small model against transformers and vLLM's CPU build
"""
