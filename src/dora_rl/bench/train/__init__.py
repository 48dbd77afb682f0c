"""How fast training is, against the device's own peak and against transformers.

run       everything in one process and one report
batches   shapes, lengths with a long tail, and the arithmetic they take
steps     whole train steps of our trainer, phase by phase
baseline  the same steps with transformers, padded
timing    clocks and kernels on a device
"""
