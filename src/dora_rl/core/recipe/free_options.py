"""Options that are handed to code as they are: what they take from the environment, and secrets in them."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from dora_rl.core.environment_values import variable_of, with_environment
from dora_rl.core.recipe.algorithm import CustomAdvantageConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.core.recipe.tree import Recipe

_SECRET_WORDS = {"secret", "password", "passwd", "passphrase", "credential", "credentials"}
_KEY_WORDS = {"key", "apikey", "token"}
"""Words in the names of secrets, which also stand in the names of harmless things (`sort_key`)."""
_SURELY_KEYS = {"api", "apikey", "access", "auth", "private", "bearer"}
_DIGESTS = {"revision", "commit", "sha", "sha256", "hash", "digest", "checksum"}
"""Words in the names of values that look as if drawn at random, and are no secret."""
_KNOWN_KEY = re.compile(
    r"(?:sk-|sk_|hf_|gh[opsu]_|github_pat_|glpat-|xox[abps]-|AKIA|AIza|pypi-|Bearer )[\w\-.]{12,}"
)
_RANDOM = re.compile(r"[A-Za-z0-9_\-+=]{32,}")
_RANDOM_BITS = 3.5
"""Bits a character from which on a long value looks drawn at random: hexadecimal digits have up to 4."""
_SHELL_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


def free_options(recipe: Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """All options that are handed to code as they are, each behind its path in the recipe."""
    for number, reward in enumerate(recipe.rewards):
        yield f"rewards[{number}].options", reward.options
    if recipe.data is not None:
        yield "data.train.options", recipe.data.train.options
        for number, part in enumerate(recipe.data.train.parts):
            yield f"data.train.parts[{number}].options", part.options
        if recipe.data.held_out is not None:
            yield "data.held_out.options", recipe.data.held_out.options
        yield "data.order.options", recipe.data.order.options
    if recipe.episode is not None:
        yield "episode.options", recipe.episode.options
    for name, role in (recipe.roles or {}).items():
        yield f"roles.{name}", {"api_key": role.api_key, "options": role.options}
    loss, advantage = recipe.algorithm.loss, recipe.algorithm.advantage
    if isinstance(loss, CustomLossConfig):
        yield "algorithm.loss.options", loss.options
    if isinstance(advantage, CustomAdvantageConfig):
        yield "algorithm.advantage.options", advantage.options


def check_environment(recipe: Recipe) -> None:
    """Raise a UserError where a variable is not set that the recipe takes a value from."""
    for path, options in free_options(recipe):
        with_environment(options, path)


def secret_warnings(recipe: Recipe) -> Iterator[str]:
    """Sentences about values that look like secrets and would stand in the files of the run."""
    for path, options in free_options(recipe):
        for where, name, value in _texts(options, path):
            if variable_of(value) is not None:
                continue
            if found := _SHELL_VARIABLE.fullmatch(value):
                yield f"{where} is the text {value}: env:{found[1]} takes the value of the variable"
            elif _is_secret(name, value):
                variable = re.sub(r"\W", "_", name).upper()
                yield (
                    f"{where} looks like a secret, and stands as it is in the files of the run: "
                    f"put it into an environment variable, and write env:{variable}"
                )


def _texts(value: Any, path: str, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Every text in options: its path, the name it has, and itself."""
    match value:
        case str():
            yield path, name, value
        case dict():
            for key, each in value.items():
                yield from _texts(each, f"{path}.{key}", str(key))
        case list() | tuple():
            for number, each in enumerate(value):
                yield from _texts(each, f"{path}[{number}]", name)


def _is_secret(name: str, value: str) -> bool:
    words = set(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    if _KNOWN_KEY.fullmatch(value):
        return True
    if "env" in words or " " in value or not value:
        return False
    if words & _SECRET_WORDS:
        return True
    if words & _KEY_WORDS and len(value) >= 8:
        return bool(words & _SURELY_KEYS) or any(map(str.isdigit, value))
    is_random = _RANDOM.fullmatch(value) is not None and any(map(str.isdigit, value))
    return is_random and not words & _DIGESTS and _bits(value) >= _RANDOM_BITS


def _bits(text: str) -> float:
    """Entropy of a text's characters, in bits a character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)
