"""Model and rows that a recipe names, looked at before anything is imported or downloaded. Torch-free."""

from difflib import get_close_matches
from pathlib import Path

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.named import OBJECT
from dora_rl.core.recipe.data import DataConfig
from dora_rl.core.recipe.tree import BUILT_IN_MODELS, Recipe


def check_model_name(name: str) -> None:
    """Refuse what is neither a model directory, nor built in, nor a name the hub could have; asks no hub."""
    path = Path(name)
    if name in BUILT_IN_MODELS or name.startswith(OBJECT):
        return
    if path.is_dir():
        if not ((path / "config.json").is_file() or (path / "adapter_config.json").is_file()):
            raise ModelError(f"{path} is no model directory: it has no config.json", hint=_way_out(path))
    elif path.is_file():
        raise ModelError(
            f"{path} is a file, not a model directory", hint=f"give its directory: {path.parent}"
        )
    elif name.count("/") != 1 or name.startswith((".", "~")) or path.is_absolute() or path.exists():
        raise no_such_model(name)


def _way_out(directory: Path) -> str:
    """What to give instead of a directory without a model: of a run, its newest checkpoint."""
    newest = max(directory.glob("checkpoints/step_*/"), default=None)
    return f"give a checkpoint of the run: {newest}" if newest else "give a directory in Hugging Face format"


def no_such_model(name: str) -> ModelError:
    """The error for an unknown model: names the built-in one it resembles, or what could be given."""
    near = get_close_matches(name, BUILT_IN_MODELS, n=1)
    known = f"give a directory in Hugging Face format, or {' or '.join(BUILT_IN_MODELS)}: --set model=..."
    if name == Recipe().model:
        # Nobody needs to have written it: it is what the simulator takes where no model is named.
        return ModelError(f"no model is named to train; '{name}' is only simulated", hint=known)
    return ModelError(f"there is no model '{name}'", hint=f"did you mean '{near[0]}'?" if near else known)


def named_data(recipe: Recipe) -> DataConfig:
    """The recipe's section about rows; a ConfigError where it has none."""
    if recipe.data is None:
        raise ConfigError(
            "the recipe names no rows to train on",
            hint="set data.train.name to a task or a file (`dora init DIR`); in Python, data=rows",
        )
    return recipe.data
