"""Instances behind an endpoint: whoever asks is answered, nothing is trained. Torch-free."""
