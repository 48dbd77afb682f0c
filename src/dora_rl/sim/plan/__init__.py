"""The planner: which split, parallelism, S and R suit a cluster, by the cost models and short simulations."""
