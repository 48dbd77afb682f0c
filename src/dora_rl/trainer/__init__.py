"""Groups in, the next version out: training on one device or over ranks.

train_batch  trajectories, groups, batches (torch-free)  trainer          a step, whole or streaming
protocol     what a run asks of a trainer                trainer_factory  a trainer from a model
microbatch   which trajectories run together             checkpoint       a trainer on disk, exactly
examples     advantages and weights of every token       export           a version as a model directory
tensors      a micro-batch on its device                 trained_weights  masters and serving weights
policy       the module: decoder, head, critic           sharded          the same over ranks, by FSDP2
objective    the algorithm's loss of some tokens         lora             low-rank factors
optimizer    AdamW, clipping, skipped updates            kept             older versions, to correct
step_report  metrics of a step                           loss_meters      their sums
rehearsal    a made-up group, run before there is one
"""
