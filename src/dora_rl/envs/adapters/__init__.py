"""Environments of others, played unchanged: an adapter is an episode, and its options name what it plays.

trl_environment   classes whose public methods are tools, as TRL's `environment_factory` takes them
gym_environment   `reset` and `step` in gymnasium's form, or in that of the gym before it
textarena_games   games of TextArena for one player
mcp_tools         tools of MCP servers
agent             programs and functions that know OpenAI's interface only
agent_program     an agent's processes
lent              environments that are made, lent to an episode, and used again
global_random     for environments that draw from the random numbers of the whole process
first_messages    what an episode begins with: the row's prompt, and what the environment shows
"""
