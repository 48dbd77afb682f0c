"""A short name for the code that decides, so that a run can say by which code it was led.

Decisions are journalled and made again when a run goes on. Where they come out otherwise, this tells a
changed program from a damaged journal.
"""

from functools import cache
from hashlib import sha256
from importlib.resources import files

from dora_rl.core.version import VERSION


@cache
def control_code() -> str:
    """The version of the package and a sum over the source of its control plane."""
    digest = sha256()
    for source in sorted(files("dora_rl.control").iterdir(), key=lambda file: file.name):
        if source.name.endswith(".py"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return f"{VERSION}-{digest.hexdigest()[:12]}"
