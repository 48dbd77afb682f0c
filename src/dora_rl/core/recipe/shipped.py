"""Recipes that come with the package, and recipes in files, by what a user types."""

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from dora_rl.core.errors import ConfigError

_DIRECTORY = Path(str(files("dora_rl"))) / "recipes"
_SUFFIXES = (".yaml", ".yml")


def shipped_recipes() -> dict[str, Path]:
    """Files of the recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(_DIRECTORY.glob("*.yaml"))}


def summary_of(path: Path) -> str:
    """The first line of a recipe: a comment that says what it is."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()


def find_recipe(name: str) -> Path:
    """The recipe file that a user names by its path, or by the name of a shipped one."""
    path, shipped = Path(name), shipped_recipes()
    if path.is_file():
        return path
    if name in shipped:
        return shipped[name]
    if path.suffix in _SUFFIXES or path.is_dir():
        raise ConfigError(f"there is no recipe file {name}", hint=f"shipped recipes: {', '.join(shipped)}")
    near = get_close_matches(name, shipped, n=1)
    known = f"shipped recipes: {', '.join(shipped)}; or give a file"
    raise ConfigError(
        f"there is no recipe named '{name}'", hint=f"did you mean '{near[0]}'?" if near else known
    )
