"""How a turn of the policy ended."""

from typing import Literal

TurnFinish = Literal["stop", "length"]
"""As the policy wanted, with a stop token or string, or cut at its length."""
