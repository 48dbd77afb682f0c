"""Rewards of a run: its reward functions in processes of their own. Never reaches torch.

pool         several reward workers: submit, poll, replace the dead
pool_worker  one of them, the requests it has, and whose time is up
judge        trajectories and groups become rewards

A user's code can raise, hang, kill its process or return nonsense: each is a `RewardFailure` with the
function's name, and the run goes on.
"""
