"""How fast training is, against the device's own peak and against transformers."""
