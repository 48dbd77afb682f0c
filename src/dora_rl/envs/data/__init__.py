"""Rows: what a run's prompts are made of.

rows     a row as plain data, and its columns     splits   which rows are held out, and the order of an epoch
files    rows of local files                      sources  a source's name becomes rows
hub      rows of Hugging Face data sets
"""
