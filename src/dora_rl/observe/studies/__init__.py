"""How each study is shown: a table for the terminal, flat rows for CSV, a picture. One file a study."""
