"""A model served: an endpoint in front of instances of the engine that a run has.

    model, recipe, keywords ──> preparing worker (torch) ──> instances <── requests ── endpoint
                                      └── a run's newer versions ──┘

A model is a directory, a checkpoint, a run directory (its newest version), or a built-in name. The socket is
bound before anything that takes long, and nothing is left behind.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from dora_rl.api.arguments import Asked
from dora_rl.api.model_server import Serving, answer_requests
from dora_rl.api.progress import Progress, Teller
from dora_rl.api.sampled_model import located
from dora_rl.core.errors import UserError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.envs.chat.chat_tokenizer import open_chat_tokenizer
from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.chat.open_codec import open_codec
from dora_rl.envs.chat.plain_codec import PlainCodec
from dora_rl.envs.endpoint.server import Endpoint
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.launch.temporary import temporary_directory
from dora_rl.launch.waiting import terminations_interrupt
from dora_rl.prepare.messages import PrepareServing
from dora_rl.prepare.preparation import Preparation
from dora_rl.prepare.recipe_names import check_model_name
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import read_setup

_SLOTS = 64
"""Requests that an instance of a model that is of no run decodes at once."""
_REQUESTS_AT_ONCE = 1024
_REQUESTS_PER_S = 10_000.0


class ServedSource(Struct, frozen=True, kw_only=True):
    """What is served: the weights of a model directory, or a run's newest version."""

    model: str
    """The model's name or directory, which has at least its configuration and tokenizer."""
    name: str
    run: Path | None = None
    """The run whose versions are served; None for the weights in the directory."""
    recipe: Recipe | None = None
    """The run's recipe, where the model is of a run."""
    is_plain: bool = False
    """Whether the run's prompts were text without a chat template."""

    def named(self, run_version: int | None) -> str:
        """The name of a version."""
        return self.name if run_version is None else f"{self.name}@{run_version}"


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    public_host: str | None = None,
    port: int = 0,
    key: str | None = None,
    context_tokens: int | None = None,
    chat: bool | None = None,
    follow: bool = False,
    ready: Callable[[Serving], None] = lambda serving: None,
    progress: Progress | bool = False,
    launch: Launch = LOCAL,
    **settings: Any,
) -> Mapping[str, int]:
    """Serve a model until an interrupt; returns what was counted. A key is drawn if none is given.

    `ready` is called when requests are taken. `chat` decides whether messages go into the chat template; left
    out, they do where the model has one, and of a run, where its prompts did. `settings` are keys of the
    recipe.
    """
    source, teller = served_source(model, follow=follow), Teller(progress)
    check_model_name(source.model)
    is_plain = source.is_plain if chat is None else not chat
    base = source.recipe or {"cluster": {"slots": _SLOTS}}
    recipe = Asked(base, {**settings, "model": source.model}).recipe
    with ExitStack() as ending:
        ending.enter_context(terminations_interrupt())
        runner = ending.enter_context(asyncio.Runner())
        endpoint = Endpoint(
            EndpointSettings(
                host=host,
                public_host=public_host,
                requests_per_s=_REQUESTS_PER_S,
                requests_at_once=_REQUESTS_AT_ONCE,
            ),
            runner.get_loop(),
            port=port,
            gives_logprobs=True,
        )
        ending.callback(lambda: runner.run(endpoint.stop()))
        place = str(ending.enter_context(temporary_directory("dora-serving-")))
        preparation = ending.enter_context(Preparation(recipe, place, launch=launch))
        prepared, worker = preparation.serving(
            PrepareServing(
                recipe=recipe,
                directory=place,
                context_tokens=context_tokens,
                run=None if source.run is None else str(source.run),
            ),
            follows=follow,
            tell=teller.say,
        )
        return runner.run(
            answer_requests(
                endpoint,
                prepared,
                _codec(Path(prepared.setup.model_directory), recipe, is_plain=is_plain),
                key=key,
                named=source.named,
                ready=ready,
                follows=worker if follow else None,
                tell=teller.say,
                launch=launch,
            )
        )


def served_source(model: str | Path, *, follow: bool) -> ServedSource:
    """What a name or directory stands for; a UserError where there is nothing to serve."""
    path = Path(model)
    layout = LiveLayout(root=path)
    if layout.setup.is_file() and any(layout.versions.glob("v*.anchor")):
        recipe = layout.read_recipe()
        return ServedSource(
            model=read_setup(layout.setup).model_directory,
            name=path.resolve().name,
            run=path,
            recipe=recipe,
            is_plain=_has_plain_prompts(layout, recipe),
        )
    if follow:
        raise UserError(
            f"{model} is no run with a version yet, so there is nothing to follow",
            hint="name the directory of a run that has begun, or leave --follow out",
        )
    if not path.exists() and path.parts[:1] == ("runs",):
        raise UserError(f"there is no run {path}", hint="`ls runs` shows those there are")
    found, run = located(model)
    name = Path(found).resolve().name if Path(found).is_dir() else str(found)
    if run is None:
        return ServedSource(model=found, name=name)
    layout = LiveLayout(root=run)
    recipe = layout.read_recipe()
    return ServedSource(
        model=found,
        name=f"{run.resolve().name}/{name}",
        recipe=recipe,
        is_plain=_has_plain_prompts(layout, recipe),
    )


def _has_plain_prompts(layout: LiveLayout, recipe: Recipe) -> bool:
    """Whether a run's prompts were text as it stands: so it should be in what is asked of its model."""
    if recipe.episode is not None or recipe.data is None or recipe.data.wrap_in_chat:
        return False
    rows = PromptTable.read(layout.prompts).all_rows
    return bool(rows) and isinstance(rows[0].row.prompt, str)


def _codec(directory: Path, recipe: Recipe, *, is_plain: bool) -> Codec:
    episode = recipe.episode
    if is_plain:
        form = "hermes" if episode is None or episode.tool_calls == "auto" else episode.tool_calls
        return PlainCodec(open_chat_tokenizer(directory), "keep", form)
    return open_codec(
        directory,
        thinking="keep" if episode is None else episode.thinking,
        tool_calls="auto" if episode is None else episode.tool_calls,
        template_options=None if recipe.data is None else recipe.data.template_options,
    )
