"""Which experts a token took in each layer that has them, as bytes: `layers x active`, layer by layer.

What is recorded of a draw are the experts of the token before it, whose pass gave the distribution. One byte
an expert, two where there are more than 256. No bytes: not recorded.
"""

from typing import Literal

TypeCode = Literal["B", "H"]
MOST = 2**16
"""Most experts of a layer that have numbers here."""


def type_code(num_experts: int) -> TypeCode:
    """The array type of an expert's number."""
    return "B" if num_experts <= 256 else "H"
