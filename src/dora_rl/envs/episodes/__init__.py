"""Episodes: coroutines that await turns. The process around them is `run.workers.episode_worker`.

chat, blocking_chat  what an episode is given      turn      what it gets for asking, or why it gets nothing
branch               its token sequences           tools     Python functions that the policy calls
episode              one in progress               runner    many of them in one loop
episode_function     the function, by its name     limits    how long its code may take
snapshot             where it goes on after a crash
episode_messages     what that process is told     threads   for what blocks
                     and says, as records          role      whom it speaks to beside the policy
doors, agent_turns   chats over HTTP, for agents
"""
