"""Cost models: what a device, a model and a split cost, from first principles and a few calibrated numbers.

Torch-free and pure: the simulator, the planner and `--dry-run` share them.
"""
