"""What a run trains on and what judges it: rows, prompts, rewards, tasks. Torch-free.

data               rows, their columns, splits and order   rewards   the built-in reward functions
tokenized_prompts  rows as token ids, once                 scoring   reward functions by name, their calls
prompt_source      which row starts next: the seam         tasks     built-in rows and their rewards
prompt_offers      what every run does around a source     chat      messages as token ids, and back
episodes           coroutines that await turns
"""
