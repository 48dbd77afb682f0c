"""The program that a box is: `python -I -S`, the standard library alone, nothing of the run's.

It is imported as a package of its own, hence by relative names: what it belongs to would have to be loaded.

main         namespaces, and the first process in them
root         the files that can be seen
jobs         programs that are run, watched and ended
confine      what a program may no longer do: limits, capabilities, system calls
syscalls     the system calls that it is refused
processes    all of them: what they take, and their end
interpreter  a Python that waits for its code
messages     what the owner says
kernel       system calls that Python has no function for
"""
