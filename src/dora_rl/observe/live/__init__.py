"""A live run as it goes: followed from the same inputs and decisions that its event log holds.

event_facts        what is known of each train step   follower      inputs and decisions to facts
metrics_tail       metrics.jsonl, read as it grows    completions   completions.jsonl, written and read
dead_run_warnings  what a dead run looks like         step_words    facts in a line of text
remarks            what is reported at once           trackers      W&B, MLflow, Trackio, the user's own
view               a screen, or lines                 screen        what it looks like
notebook           a screen as HTML
"""
