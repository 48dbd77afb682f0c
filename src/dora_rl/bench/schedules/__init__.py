"""One recipe under every schedule, in live runs, with the simulator's prediction beside each.

options              from the command line to what is compared
schedule_comparison  the runs one after the other, measured from their logs
workload             a model of random weights with rows and a recipe, as files
coin                 a reward without meaning, for such runs
prescribed           a live run whose responses have lengths that were given beforehand
spans                an event log becomes stretches of decoding, steps and delays
costs                what decoding, training and publishing cost, fitted to a run's own log
forecast             what the simulator says a run takes, given those costs
machine_use          how much of the time GPU and processors were busy
"""
