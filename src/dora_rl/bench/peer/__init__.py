"""The same training by TRL's GRPOTrainer and by us.

peer_comparison  both, one after the other on the same cores
trl              the process that trains with TRL; the only module that imports it
"""
