"""`dora bench weights`: what a delta saves, on real optimizer steps.

training  a decoder under AdamW on a language-model loss, one version a step
measure   bytes and times of publishing and adopting those versions, against full weights
"""
