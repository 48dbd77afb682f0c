"""What every layer shares: records, the typed recipe, events, errors. Knows no torch and no layer above."""
