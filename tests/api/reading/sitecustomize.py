"""Imported by every Python that finds it on its path: notes who reads keys where a file is named for it."""

import os
from pathlib import Path

if path := os.environ.get("DORA_KEY_READS"):
    from key_recorder import install

    install(Path(path))
