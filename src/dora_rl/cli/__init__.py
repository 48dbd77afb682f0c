"""The `dora` command: one module per command, options only; the work is imported when a command runs."""
