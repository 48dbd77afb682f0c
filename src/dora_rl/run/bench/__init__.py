"""Whole live runs, measured: what the benchmarks of schedules and beside another system are made of.

prescribed  a live run whose responses have lengths that were given beforehand
workload    a model of random weights with rows and a recipe, as files
coin        a reward without meaning, for such runs
spans       an event log becomes stretches of decoding, steps and delays
fitting     least squares whose coefficients are costs, so none is negative
costs       what decoding, training and publishing cost, from a run's own log
gpu_use     how much of the time a GPU was busy
peer        the process that trains with TRL; the only module that imports it
"""
