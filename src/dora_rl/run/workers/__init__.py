"""The processes of a run: `python -m dora_rl.run.workers.<name> ADDRESS`. The only part that reaches torch.

instance  an engine and its loop        tracked  an engine that says how far its requests are
trainer   the trainer, or its rank 0    rank     each of its other ranks
rewards   reward functions, without torch
prompts   rows as token ids, once, before the run begins
"""
