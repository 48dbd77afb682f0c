"""Reward functions, called: the process around them is `run.workers.reward_worker`.

reward_messages  requests to that process and its replies, as records
functions        reward functions by name, checked
reward_scorer    calls them; failure becomes data
"""
