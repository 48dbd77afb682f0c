"""Rows: what a run's prompts are made of.

rows       a row as plain data, its columns     splits   which rows are held out, the order of an epoch
row_files  rows of local files                  sources  a source's name becomes rows
hub        rows of Hugging Face data sets
"""
