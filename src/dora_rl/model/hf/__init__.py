"""Models that transformers computes: whatever the native decoder does not know.

hf_model    what such a model is: its sizes, and whether its attention can be ours
skeleton    its modules without weights: names and shapes of parameters
hf_decoder  its modules, behind the calls of the native Decoder
attention   the attention seam: whole packed sequences, with windows, caps and sinks
save        a Hugging Face directory again
"""
