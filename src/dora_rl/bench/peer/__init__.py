"""The same training by TRL's GRPOTrainer and by us.

peer_comparison         both, one after the other on the same cores
environment_comparison  both playing the same environment class, its tools quick and slow
calculators             that class
trl                     the process that trains with TRL; the only module that imports it
"""
