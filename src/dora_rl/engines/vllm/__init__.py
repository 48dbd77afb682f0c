"""vLLM as an instance: its engine in the instance's process, one version at a time.

minors         which versions of vLLM were tested, and what each can do
kind           sized beside the other engines, opened with what ends a response
library        vLLM set up as this project needs it: environment, arguments, scheduler
vllm_engine    the engine behind the protocol
vllm_requests  its engine as a handful of calls
parameters     where the decoder's tensors lie in vLLM's model: whole reloads and changes in place
draws          the native engine's draws over logits of any origin
kv_moves       KV that leaves with a request and arrives with one
keyed_draws    tokens drawn by the keyed noise that the native engine draws by

Only `minors` and `kind` are imported without vLLM.
"""
