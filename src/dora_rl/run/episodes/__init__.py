"""Episodes of a run: their code in processes of its own. Never reaches torch.

pool             several processes: begin an episode, tell it, hear it, replace the dead
episode_process  one of them, and the episodes it has
"""
