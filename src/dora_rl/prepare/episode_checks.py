"""What episodes need of a model, looked at before anything starts: a chat that goes on, and room for it."""

from pathlib import Path

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe import Recipe
from dora_rl.envs.chat.open_codec import open_codec


def check_codec(recipe: Recipe, directory: Path, stop_tokens: tuple[int, ...]) -> None:
    """Refuse a model whose chat cannot be extended turn by turn, or whose turns the engine would not end."""
    episode, data = recipe.episode, recipe.data
    assert episode is not None, "only episodes have turns"
    assert data is not None, "a run without rows is refused"
    codec = open_codec(
        directory,
        thinking=episode.thinking,
        tool_calls=episode.tool_calls,
        template_options=data.template_options,
    )
    if codec.stop_ids and not set(codec.stop_ids) & set(stop_tokens):
        raise ModelError(
            f"turns of {directory} end with one of the tokens {sorted(codec.stop_ids)} by its chat template, "
            f"and with one of {sorted(stop_tokens)} by its configuration",
            hint="add the template's token to eos_token_id in generation_config.json",
        )


def check_context(recipe: Recipe, max_positions: int) -> None:
    """Refuse contexts of episodes that are longer than what the model takes."""
    assert recipe.episode is not None, "only episodes have contexts of their own"
    if recipe.episode.max_context_tokens > max_positions:
        raise ConfigError(
            f"episode.max_context_tokens = {recipe.episode.max_context_tokens}, and the model takes "
            f"{max_positions} tokens",
            hint=f"set episode.max_context_tokens={max_positions}",
        )
