"""What survives a crash: the run directory, and in it the journal, which is the truth about the run.

Knows records of `core` and files; no control plane, no processes, no torch. `docs/journal.md` says what is
written when, and how a run goes on from it.
"""
