"""The built-in reward functions, in TRL's form: `f(completions, **columns) -> [float | None, ...]`.

A name is chosen from this table; the module behind it is imported when it is used. Those that hold something,
a model or a client, are classes: an object is made of one in each process that scores.
"""

BUILT_IN = {
    "accuracy_reward": "dora_rl.envs.rewards.accuracy:accuracy_reward",
    "exact_match": "dora_rl.envs.rewards.match:exact_match",
    "think_format_reward": "dora_rl.envs.rewards.formats:think_format_reward",
    "format_reward": "dora_rl.envs.rewards.formats:format_reward",
    "overlong_penalty": "dora_rl.envs.rewards.length_penalty:overlong_penalty",
    "repetition_penalty": "dora_rl.envs.rewards.repetition:repetition_penalty",
    "reward_model": "dora_rl.envs.rewards.reward_model:RewardModel",
    "openai_judge": "dora_rl.envs.rewards.openai_judge:OpenAIJudge",
    "count_reward": "dora_rl.envs.tasks.count:count_reward",
    "reasoning_gym_reward": "dora_rl.envs.tasks.reasoning_gym_tasks:reasoning_gym_reward",
}
