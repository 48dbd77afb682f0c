"""Episodes of a run: members that take several turns, between the engine and code of the user's.

host             opened, started, ended; what they ask and say becomes inputs, payloads and effects
episode_turns    turns and side effects: compared with what is recorded, begun, answered
episode_record   what exists of one episode: branches, turns, side effects
opened_prompts   environments that are reset before their group is admitted
pool             the processes that episodes run in: episodes begun, told, heard
episode_process  one of these processes, and the episodes it has

Never reaches torch.
"""
