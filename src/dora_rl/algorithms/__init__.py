"""What a batch is worth and how a policy learns from it: pure functions, one per idea.

config        every choice as a frozen record, torch-free     tokens       what a loss sees and gives back
presets       the choices that have names (`grpo`, `dapo`)    losses       one module per policy loss
advantages    of trajectories, from rewards and groups        aggregation  token losses into one batch loss
gae           of tokens, from a critic's values               correction   engine against trainer logprobs
regularisers  KL to a reference, entropy                      overlong     what a cut trajectory costs
critic        the value loss

Suffixes: `_T` trained policy tokens of whole trajectories laid end to end, `_N` trajectories. Prompt,
environment and masked tokens are left out before they come here, so none can reach an `exp`.

The behaviour policy is always the version that generated: `behaviour_logprobs_T` is what the engine recorded
when it sampled. It is never recomputed with the trainer's current weights, which would make every ratio 1
however stale the trajectory is.
"""
