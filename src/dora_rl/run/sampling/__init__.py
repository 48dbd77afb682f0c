"""A model tried out: samples of rows by instances without a trainer. Never reaches torch.

session   the instances, and whoever has them generate        samples  what comes of it: texts, figures
responses one response to a row, judged by rewards            played   an episode of several turns
"""
