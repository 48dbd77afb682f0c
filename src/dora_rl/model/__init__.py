"""One decoder for engine and trainer: Llama, SmolLM2, Qwen2, Qwen3 and Qwen3-MoE.

config      what a model is, as a frozen record      parameter_layout  parameters, published names
hub_config  that record from and to a config.json    load       a Decoder from a Hugging Face directory
decoder     the forward pass over packed sequences   save       and back
attention   the seam where keys and values live      tokenizer  text, token ids and stop tokens
logprobs    of given tokens, without all the logits  tiny       a model from nothing, for demos
delta       a change of weights, as an engine takes it   random_models  shapes of known models, for benches
"""
