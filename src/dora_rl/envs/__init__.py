"""What a run trains on and what judges it: rows, prompts, rewards, tasks. Torch-free.

config             every choice as a frozen record      data      rows, their columns, splits and order
tokenized_prompts  rows as token ids, once              rewards   the built-in reward functions
prompt_source      which row starts next: the seam      scoring   reward functions by name, their calls
prompt_offers      what every run does around a source  tasks     built-in rows and their rewards
"""
