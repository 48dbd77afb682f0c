"""What the owner of a box tells it: words on a socket that keeps them apart, with descriptors.

The first word is the box's settings (marshalled: both ends are the same Python, and only the owner's word is
read). What the box says is a marshalled mapping with one of the keys "ready", "failed" and "ended".
"""

RUN_PROGRAM = b"run program"
RUN_PYTHON = b"run python"
KILL = b"kill"

NUM_DESCRIPTORS = 4
"""Descriptors that come with a program: its job, and its input, output and errors."""
LONGEST = 1 << 16
"""Bytes that a word may have."""
