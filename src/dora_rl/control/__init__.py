"""The control plane: which group starts, where it runs, when it is trained on.

Decisions are synchronous methods of small objects that know no torch, no process and no clock. The
live runtime and the simulator feed the same `ControlPlane` and carry out what it decides.
"""
