"""Episodes: coroutines that await turns. The process around them is `run.workers.episode_worker`.

episode_messages  what that process is told and says, as records
"""
