"""A recipe becomes a checked plan: everything about a run that can be known before its first process starts.

planner  the whole, in a process with torch          aside     work with torch, in a process that ends
plan     what comes of it, as a record               models    what is trained, as a directory
inputs   rows and rewards, looked at                 placement who runs where
disk     what will be written
trainer_memory  what the trainer needs               machine   what there is, and what of it is free
"""
