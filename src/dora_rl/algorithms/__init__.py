"""What a batch is worth and how a policy learns from it: pure functions, one per idea.

tokens        what a loss sees and gives back                  losses       the policy losses
advantages    of trajectories, from rewards and groups         aggregation  token losses into one batch loss
critic        advantages of tokens from values, value loss     correction   engine against trainer logprobs
regularisers  KL to a reference, entropy, length

Every choice is a frozen record of the recipe (`core/recipe/algorithm.py`, `losses.py`), and those that have a
name are presets (`core/recipe/presets.py`); both are torch-free.

Suffixes: `_T` trained policy tokens of whole trajectories laid end to end, `_N` trajectories. Prompt,
environment and masked tokens are left out before they come here, so none can reach an `exp`.

The behaviour policy is always the version that generated: `behaviour_logprobs_T` is what the engine recorded
when it sampled. It is never recomputed with the trainer's current weights, which would make every ratio 1
however stale the trajectory is.
"""
