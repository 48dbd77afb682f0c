"""Weights: versions on their way from the trainer to the instances, and through a crash.

protocol    the seam: publish on one side, fetch on the other
store       versions in files that survive a crash
strips      tensors strung together, to be compared a few times instead of hundreds
difference  what changed between two versions, in few bytes, computed where the tensors are
positions   sorted indices in few bits          bits    patterns, planes and packing
container   the file format                     packed_sections  its sections: compressed, summed, bounded
shelf       the files of a store, and reading   chain   which of them a version needs
atomic_files  durable writing                   store_lock  one publisher at a time

A version is its tensors in the serving dtype, under the Decoder's names. Everything here is exact to the
bit: a NaN's payload and the sign of a zero survive.
"""
