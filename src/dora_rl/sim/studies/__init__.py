"""Studies: questions that take several runs. One file each: the set-ups, and what their results say.

A study makes recipes and turns results into rows; it neither runs nor prints anything.
"""
