"""A model tried out: rows answered and judged, or prompts answered, by the engine that a run has.

    model, recipe, keywords ──> Asked ──> preparing worker (torch) ──> instances, reward workers ──> samples

A model is a directory, a checkpoint, a run directory (its newest checkpoint), or a built-in name. Of a run or
its checkpoint the recipe is the run's, where none is given. Nothing is left behind.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dora_rl.api.arguments import Asked
from dora_rl.api.given import given_in_files
from dora_rl.api.in_process import CallersRewards
from dora_rl.api.progress import Progress, Teller
from dora_rl.api.run_handle import Run
from dora_rl.core.errors import UserError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.resolution import Base
from dora_rl.core.record import Record
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.launch.temporary import temporary_directory
from dora_rl.launch.waiting import Interrupts, terminations_interrupt
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.sampling.samples import SampledRow, SampleFigures, figures
from dora_rl.run.sampling.session import SamplingSession


class Evaluated(Record, frozen=True):
    """What a model came to on rows: figures over all of them, and every sample."""

    model: str
    figures: SampleFigures
    rows: tuple[SampledRow, ...]

    def write(self, path: str | Path) -> None:
        """Write the samples as JSON lines, one a row: prompt, texts, rewards."""
        lines = (msgspec.json.encode(row) + b"\n" for row in self.rows)
        Path(path).write_bytes(b"".join(lines))


def evaluate(
    model: Any = None,
    recipe: Base = None,
    *,
    progress: Progress | bool = False,
    launch: Launch = LOCAL,
    **settings: Any,
) -> Evaluated:
    """Let a model answer held-out rows, and judge the answers by rewards; or play episodes, as in training.

    >>> evaluate("runs/demo-1").figures.reward
    0.91
    >>> found = evaluate("path/to/model", data="test.jsonl", rewards=[right], samples=8, max_new_tokens=256)
    >>> found.figures.pass_rates["pass@8"], found.rows[0].samples[0].text
    (0.62, 'The answer is 72.')

    Rows, rewards, response and evaluation are a recipe's: that of the run where `model` is a run or one of
    its checkpoints, else the one given, with keywords as `train` takes them laid over it. Where it holds no
    rows out, all are answered, and `figures.is_held_out` is False. Several `samples` are drawn at
    the recipe's temperature, one is greedy.
    """
    return _sampled(model, recipe, settings, Teller(progress), launch, is_judged=True)


def generate(
    model: Any,
    prompts: str | Mapping[str, Any] | Iterable[Any],
    *,
    progress: Progress | bool = False,
    launch: Launch = LOCAL,
    **settings: Any,
) -> list[SampledRow]:
    """Let a model answer prompts: strings, or lists of messages; one prompt may stand by itself.

    >>> generate("runs/demo-1", "d>k:")[0].samples[0].text
    'defghijk'

    A string goes into the chat template, as a user's message, where the model's directory has one; of a run,
    where its recipe says so; `wrap_in_chat` decides otherwise. Messages always do. At most 256 tokens,
    unless the run or `max_new_tokens` says otherwise.
    """
    if isinstance(model, str | Path) and "wrap_in_chat" not in settings:
        directory, run = located(model)
        # A run's prompts are what they were in training.
        settings |= {"wrap_in_chat": True} if run is None and _has_chat_template(directory) else {}
    table = [{"prompt": prompt} for prompt in _listed(prompts)]
    if not table:
        raise UserError("there is no prompt to answer", hint="give one")
    found = _sampled(
        model,
        {"response": {"max_new_tokens": 256}},
        {**settings, "data": table},
        Teller(progress),
        launch,
        is_judged=False,
    )
    return list(found.rows)


def _listed(prompts: Any) -> list[Any]:
    is_one = isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and bool(prompts) and isinstance(prompts[0], Mapping)
    )
    return [prompts] if is_one else list(prompts)


def located(model: str | Path) -> tuple[str, Path | None]:
    """The model of a name or directory, and the run it is of: of a run, the newest checkpoint."""
    path = Path(model)
    if LiveLayout(root=path).setup.is_file():
        checkpoint = Run(path).checkpoint
        if checkpoint is None:
            raise UserError(f"the run in {path} has no checkpoint yet", hint="wait for one, or name a model")
        return str(checkpoint), path
    run = path.absolute().parent.parent
    is_model = (path / "config.json").is_file() or (path / "adapter_config.json").is_file()
    is_checkpoint = is_model and LiveLayout(root=run).setup.is_file()
    return str(model), run if is_checkpoint else None


def _without_rows(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """A run's recipe; where other rows are given, nothing of it says which are held out or too long."""
    if recipe.data is None or not settings.keys() & {"data", "train_dataset"}:
        return recipe
    data = replace(recipe.data, held_out=None, held_out_share=0.0, max_prompt_tokens=None)
    return replace(recipe, data=data)


def _has_chat_template(model: str) -> bool:
    """Whether a model directory brings a chat template along."""
    directory = Path(model)
    config = directory / "tokenizer_config.json"
    is_in_config = config.is_file() and b'"chat_template"' in config.read_bytes()
    return is_in_config or (directory / "chat_template.jinja").is_file()


def _sampled(
    model: Any,
    base: Base,
    settings: Mapping[str, Any],
    teller: Teller,
    launch: Launch,
    *,
    is_judged: bool,
) -> Evaluated:
    """All rows with their samples, in order, and what they come to."""
    if isinstance(model, str | Path):
        model, run = located(model)
        if run is not None and (base is None or not is_judged):
            base = _without_rows(LiveLayout(root=run).read_recipe(), settings)
    asked = Asked(base, {**settings, **({} if model is None else {"model": model})})
    sent, kept = asked.objects.packed()
    asked.objects.check_sent(kept)
    launch = CallersRewards(launch, asked.objects.of) if kept else launch
    with ExitStack() as ending:
        ending.enter_context(terminations_interrupt())
        place = ending.enter_context(temporary_directory("dora-sampling-"))
        given = ending.enter_context(given_in_files(asked, sent))
        recipe = (
            asked.recipe
            if not kept
            else replace(asked.recipe, scoring=replace(asked.recipe.scoring, processes=1))
        )
        interrupts = Interrupts()
        ending.callback(interrupts.close)
        preparation = ending.enter_context(
            Preparation(recipe, str(place), launch=launch, given=given, interrupts=interrupts)
        )
        setup = preparation.sampling(is_judged=is_judged, tell=teller.say)
        session = ending.enter_context(
            SamplingSession(setup, is_judged=is_judged, launch=launch, objects=sent, interrupts=interrupts)
        )
        rows = sorted(session.rows(), key=lambda row: row.row)
        found = figures(rows, setup, is_held_out=session.is_held_out)
        return Evaluated(model=setup.recipe.model, figures=found, rows=tuple(rows))
