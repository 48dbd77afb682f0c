"""The library: what `dora train` does, as functions. Knows no command line.

arguments  keywords become a recipe and the objects beside it     training   prepare, run, report
objects    a user's functions, packed for the workers             models     a model that is loaded
"""
