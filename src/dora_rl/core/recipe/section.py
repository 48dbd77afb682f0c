"""What every part of the recipe is made of: frozen, keyword-only, and an unknown key is an error."""

from typing import Annotated

from msgspec import Meta, Struct

from dora_rl.core.errors import ConfigError

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every section of a recipe."""


def check_range(name: str, low: float, high: float) -> None:
    """Raise a ConfigError where a lower bound is above its upper bound."""
    if low > high:
        raise ConfigError(
            f"{name}: the lower bound {low} is above the upper bound {high}",
            hint="give bounds with low <= high",
        )
