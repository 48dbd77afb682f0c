"""Reward functions in processes of their own.

messages   what crosses the pipe, as records         process  the parent's end of one process
wire       records as framed bytes                   pool     several of them: submit, poll, replace the dead
functions  reward functions by name, checked         judge    trajectories and groups become rewards
scorer     calls them; failure becomes data
worker     the process that does

A user's code can raise, hang, kill its process or return nonsense: each is a `RewardFailure` with the
function's name, and the run goes on.
"""
