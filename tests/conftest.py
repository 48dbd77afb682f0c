"""Hypothesis profiles: `default` keeps the suite quick, `thorough` searches long.

Triton decides when it is first imported whether kernels are compiled or interpreted; without a GPU they can
only be interpreted.
"""

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("default", max_examples=30, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("DORA_HYPOTHESIS_PROFILE", "default"))

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
