"""Code that nobody has read, such as what a model wrote, runs in a box.

sandbox        boxes for a process: a program or code in a new one, or one that is kept
box            one box, from the outside: programs are run in it, one at a time
program_watch  a program while it runs: what it says, how long it takes
limits         what programs may take, and how one ended
relay          the one way out of a box: from its loopback to one address
inside/        the program that a box is
"""
