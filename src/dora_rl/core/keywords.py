"""What a function of the user's own can be called with.

The run calls such functions with keywords: a function gets what it names of everything that is offered, and
all of it where it has `**kwargs`. What it cannot do without, and options it does not have, are known before
the first call.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean


class Keywords(Struct, frozen=True, kw_only=True):
    """The keyword arguments that one function takes."""

    named: frozenset[str]
    """Names of the function's parameters that can be given by keyword."""
    takes_all: bool
    """Whether the function has `**kwargs`, and so takes any keyword."""
    required: tuple[str, ...]
    """Names of parameters that the function needs and that neither the run nor the options give."""

    def chosen(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the offered values that the function takes, by keyword."""
        return {name: value for name, value in offered.items() if self.takes_all or name in self.named}


def keywords_of(
    call: Callable[..., Any], what: str, *, offered: Collection[str], options: Mapping[str, Any]
) -> Keywords:
    """Read the keywords a function takes; `what` names it in errors, as in "the reward 'length'".

    `offered` are the keywords that the run always has for it, `options` those that the recipe gives.
    """
    parameters = inspect.signature(call).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UserError(
                f"{what} takes '{parameter.name}' by position only",
                hint="it is called with keywords: leave the slash out of its parameters",
            )
    known = {*offered, *options}
    found = Keywords(
        named=frozenset(p.name for p in named),
        takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
        required=tuple(p.name for p in named if p.default is p.empty and p.name not in known),
    )
    _check_options(found, what, offered, options)
    return found


def _check_options(found: Keywords, what: str, offered: Collection[str], options: Mapping[str, Any]) -> None:
    for name in options:
        if name in offered:
            raise UserError(f"the option '{name}' of {what} is what the run gives it", hint="leave it out")
        if not found.takes_all and name not in found.named:
            raise UserError(
                f"{what} has no option '{name}'",
                hint=did_you_mean(name, sorted(found.named - set(offered)), "it takes"),
            )
