"""A run, looked at afterwards or while it goes: read, summed up in words, drawn, written as one HTML page.

run_reader  a run directory, whatever state it is in       run_facts  what the run was, in numbers
plots       reward, lengths, staleness, timeline, as SVG   page       everything in one file of its own
text        the same for the terminal
"""
