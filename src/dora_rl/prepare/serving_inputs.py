"""A model, or a run's newest version, becomes what serving begins with; later versions follow.

Like `sampling_inputs`, without rows: the engine is sized for conversations of any kind. Versions are copied
into a store of the server's own, because the run retires its old ones while they still answer. Needs torch.
"""

from pathlib import Path

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe import Batch, Control, Recipe
from dora_rl.core.recipe.live import WarmStart
from dora_rl.model.config import ModelSizes
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer
from dora_rl.prepare.messages import Doing, NewestTaken, PrepareServing, Report, ServingPrepared, TakenVersion
from dora_rl.prepare.model_choice import read_checked, with_computing
from dora_rl.prepare.model_directory import model_directory
from dora_rl.prepare.planner import memory_limits, with_base
from dora_rl.prepare.run_memory import RunMemory
from dora_rl.prepare.sampling_inputs import generating_devices, served_tensors
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.weights.errors import UnknownVersion
from dora_rl.weights.store import Store
from dora_rl.weights.strips import Tensors

_CONTEXT_TOKENS = 4096
"""Most tokens of a conversation where nothing else is said and the model has more."""
_WHOLE_CONTEXTS = 16
"""Conversations of the greatest length that KV is set aside for; shorter ones are more."""


class ServingInputs:
    """What serving begins with, and the store of the versions that it goes on with."""

    def __init__(self, asked: PrepareServing, report: Report) -> None:
        """Everything but the weights is looked at here."""
        self._report = report
        report(Doing(what=f"looking for the model '{asked.recipe.model}'"))
        found = model_directory(asked.recipe)
        self._directory, recipe = with_base(found, _settled(asked.recipe))
        recipe = with_computing(recipe, self._directory)
        model = read_checked(recipe, self._directory)
        layout = LiveLayout(root=Path(asked.directory))
        tokenizer = load_tokenizer(self._directory)
        layout.tokenizer.write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
        self._setup = _sized(recipe, model, self._directory, asked)
        self._store = Store(layout.versions)
        self._from = None if asked.run is None else Store(LiveLayout(root=Path(asked.run)).versions)
        self._taken = TakenVersion(number=0, run_version=None)

    def prepared(self) -> ServingPrepared:
        """Publish the first version; returns all that serving begins with."""
        self._report(Doing(what="reading the model"))
        if self._from is None:
            self._store.publish(0, served_tensors(self._directory, self._setup.recipe))
        else:
            run_version, tensors = _newest_of(self._from)
            self._store.publish(0, tensors)
            self._taken = TakenVersion(number=0, run_version=run_version)
        return ServingPrepared(
            setup=self._setup,
            stop_tokens=tuple(sorted(load_eos_ids(self._directory))),
            version=self._taken,
        )

    def take_newest(self) -> NewestTaken:
        """Publish the run's newest version behind those taken before, of which only the last is in use."""
        if self._from is None or max(self._from.versions, default=None) == self._taken.run_version:
            return NewestTaken(version=None)
        run_version, tensors = _newest_of(self._from)
        number = self._taken.number + 1
        self._store.publish(number, tensors)
        self._store.retire(self._taken.number)
        self._taken = TakenVersion(number=number, run_version=run_version)
        return NewestTaken(version=self._taken)


def _newest_of(run: Store) -> tuple[int, Tensors]:
    """The newest version of a run, which may publish and retire meanwhile."""
    while versions := run.versions:
        try:
            return versions[-1], run.fetch(versions[-1])
        except UnknownVersion:
            continue  # A newer one has taken its place.
    raise UserError(f"{run.directory} holds no version of the run", hint="name a checkpoint of it")


def _settled(recipe: Recipe) -> Recipe:
    """The recipe without anything of training; a response is as long as its conversation leaves room for."""
    return replace(
        recipe,
        data=None,
        rewards=(),
        episode=None,
        warm_start=WarmStart(),
        response=replace(recipe.response, max_new_tokens=1),
        batch=Batch(groups=1, group_size=_WHOLE_CONTEXTS),
        control=Control(schedule="sync", max_staleness=0, silence_s=recipe.control.silence_s),
    )


def _sized(recipe: Recipe, model: ModelSizes, directory: Path, asked: PrepareServing) -> RunSetup:
    context = asked.context_tokens or min(model.max_positions, _CONTEXT_TOKENS)
    if not 1 < context <= model.max_positions:
        raise ConfigError(
            f"conversations of {context} tokens are asked for; the model has {model.max_positions} positions",
            hint=f"give --context 2 to {model.max_positions}",
        )
    devices = generating_devices(recipe)
    limits = tuple(memory_limits(recipe, devices))
    # An engine has room for one token more than the prompt and the single one that the recipe says.
    sized = RunMemory(recipe, model, devices, limits, context - 2).add_engines()
    return RunSetup(
        recipe=recipe,
        run_directory=asked.directory,
        model_directory=str(directory),
        engine=sized.config,
        devices=devices,
        is_served=True,
    )
