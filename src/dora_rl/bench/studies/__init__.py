"""Studies: questions that take several simulated runs. One file each: the set-ups, the table, the picture.

study_runs  makes a study's recipes, simulates them, prints the table and writes CSV and pictures
"""
