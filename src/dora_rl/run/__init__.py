"""The live system: the control plane with real processes behind its decisions (`docs/runtime.md`).

run_setup     everything a run needs, as one plain record   messages  what workers are told and say
live_run      run_live and resume_live
orchestrator  the loop: messages to inputs, decisions to commands; never reaches torch
rewards       the pool of reward workers, and what it says of a trajectory
episodes      the pool of processes that episodes run in
sampling      rows answered, or episodes played, without a trainer
workers       the processes: an instance, the trainer and its ranks, rewards, episodes, a source of prompts
"""
