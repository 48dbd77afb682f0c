"""Groups in, the next version out: training on one device or over ranks.

records     trajectories, groups, batches (torch-free)   trainer     a step, whole or streaming
config      every setting (torch-free)                   opening     a trainer from a model
protocol    what a run asks of a trainer                 checkpoint  a trainer on disk, exactly
microbatch  which trajectories run together              exporting   a version as a Hugging Face directory
examples    advantages and weights of every token        weights     masters and serving weights, one device
tensors     a micro-batch on its device                  sharded     the same over ranks, by FSDP2
policy      the module: decoder, head, critic            lora        low-rank factors
objective   the algorithm's loss of some tokens          kept        older versions, to measure and correct
optimizer   AdamW, clipping, skipped updates             report      metrics; meters: their sums
"""
