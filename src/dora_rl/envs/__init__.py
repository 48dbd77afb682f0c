"""What a run trains on and what judges it: rows, prompts, rewards, tasks. Torch-free.

config    every choice as a frozen record            rewards   the built-in reward functions named     a
Python object by its written name        scoring   reward functions in processes of their own data
rows, their columns, splits and order      tasks     built-in rows with the reward that goes with them
prompts   rows as token ids, once
prompt_source, prompt_offers   which row starts next: the seam, and what every run does around it
"""
