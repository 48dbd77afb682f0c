"""The processes of a run: `python -m dora_rl.run.workers.<name> ADDRESS`. The only part that reaches torch.

instance_worker  an engine and its loop           trainer_main    the trainer, or its rank 0
reward_worker    reward functions, without torch  rank            each of the trainer's other ranks
source_worker    a user's own source of prompts   trainer_worker  what every rank does of a command
episode_worker   episodes, without torch
"""
