"""How fast the native engine is: one command, one run, one table a section.

engine_bench    what is measured: device, shape, engines sized for a workload
workloads       requests of given lengths, and timed runs of them
device_speed    what the device itself can do
roofline        the least time a workload could take on it, operation by operation
reference       what vLLM reached, with machine, version and date (reference.json)
vllm_beside     vLLM on the same workloads, where it is installed
vllm_process    the process in which it runs
suite           the sections by name
throughput      tokens a second by workload, against vLLM and the roofline
features        what batch-invariant mode, resident versions and a new version cost
migration       moving a request against computing its KV again
scheduler_time  the scheduler's time for a row, without a device
cpu             a real small model against transformers and vLLM's CPU build
"""
