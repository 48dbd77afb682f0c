"""How fast the native engine is: one command, one run, one table a section.

figures     a table as plain data
reference   what others reached, with its source
workloads   requests of given lengths
shapes      models with random weights
setup       what is measured: device, shape, sizes
timing      runs of a workload, timed
hardware    what the device itself can do
roofline    the least time a workload could take on it
options     from the command line to a setup
suite       the sections by name
sections    one module each
"""
