"""Everything that shows a run: words, tables and pictures. Reads event logs and results; decides nothing."""
