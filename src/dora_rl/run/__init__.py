"""The live system: the control plane with real processes behind its decisions (`docs/runtime.md`).

setup         everything a run needs, as one plain record       messages  what workers are told and say
run           run_live and resume_live
orchestrator  the loop: messages to inputs, decisions to commands; never reaches torch
workers       the processes: an instance, the trainer, the prompts
"""
