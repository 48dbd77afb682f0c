"""Pictures: one file per kind, one look for all. Drawn without a window or any global state."""
