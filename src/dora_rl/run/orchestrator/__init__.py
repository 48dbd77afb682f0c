"""The middle of a live run: one loop between the control plane and the workers. Never reaches torch.

loop         wait, translate, decide, write down, act
translating  what workers say becomes inputs and payloads      requests   where each is, and its tokens
carrying     decisions become commands                         instances  their processes, and deaths
training     the trainer's process: batches, replays, checkpoints
scoring      ended trajectories become rewards                 evaluating held-out rows, now and then
failing      rewards that failed, and when that is the end     deaths     of workers, and too many
writing      journal, event log, watchers                      metrics    one line a step
opening      a new run, or one to go on with                   plane      the control plane of a live run
preparing    rows and warm start, by a process of their own    batches    journalled groups for the trainer
"""
