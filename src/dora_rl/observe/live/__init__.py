"""A live run as it goes: followed from the same inputs and decisions that its event log holds.

facts        what is known of each train step       follower     inputs and decisions to facts
metrics      metrics.jsonl, read and awaited        completions  completions.jsonl, written and read
warnings     what a dead run looks like             words        facts in a line of text
remarks      what is told at once
view         a screen, or lines                     screen       what it looks like
trackers     W&B, MLflow, Trackio
"""
