"""Reward functions, called: the process around them is `run.workers.rewards`.

messages   what is asked of that process and what it says, as records
functions  reward functions by name, checked
scorer     calls them; failure becomes data
"""
