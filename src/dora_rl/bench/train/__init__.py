"""How fast training is, against the device's own peak and against transformers.

train_bench    everything in one process and one report
train_batches  shapes, lengths with a long tail, and the arithmetic they take
timed_steps    whole train steps of our trainer, phase by phase
baseline       the same steps with transformers, padded
phase_clock    clocks and kernels on a device
"""
