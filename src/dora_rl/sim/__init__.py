"""The simulator: the same control plane under virtual time, with cost models instead of devices.

Deterministic for a seed. It never simulates token by token: between two events every running
request of an instance gains tokens at a rate that has a closed form.
"""
