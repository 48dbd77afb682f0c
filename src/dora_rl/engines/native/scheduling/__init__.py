"""Scheduling: requests, blocks and turns, without a tensor.

blocks               a pool of KV blocks with reference counts
prefixes             prompts of groups, computed once and shared
sequence             one request on its way
turns                whose version computes next
step_plan            one step as data, and the executor that carries it out
host_room            room on the host
residency            who is in the device's memory, and who must leave it
scheduled_sequences  who waits and who runs: admission, chunked prefill, decode, preemption
scheduler            requests from submission to their end
stops                when a turn is over
"""
