"""A run, looked at afterwards or while it goes: read, summed up in words, drawn, written as one HTML page.

reading  a run directory, whatever state it is in       facts  what the run was, in numbers
plots    reward, lengths, staleness, timeline, as SVG   page   everything in one file that needs no other
text     the same for the terminal
"""
