"""What of a recipe may be changed when a run goes on, and how the change is made. Never reaches torch.

A run's recipe stands in its journal as it was when the run began, and in `setup.json` and `recipe.yaml` as it
is now. Whoever resumes may ask for other values, by `--set` or by editing `recipe.yaml`: those that decide
nothing about what was trained are taken over, in both files; any other is refused by name.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.resolution import anchored, recipe_of
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_dict, to_yaml
from dora_rl.run.prompt_table import PromptCounts
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup, encode_setup, read_setup
from dora_rl.store.durable import write_atomically
from dora_rl.store.journal import Journal
from dora_rl.store.run_directory import RunDirectory

CHANGEABLE = (
    "steps",
    "checkpoints",
    "cluster.host",
    "cluster.ray",
    "devices.instances",
    "evaluation.every",
    "optimizer.learning_rate_schedule.total_updates",
    "patience",
    "run.log_completions",
    "run.storage",
    "run.trackers",
    "scoring",
    "trainer.lora.merged_checkpoints",
)
"""Keys, and sections, that may be changed when a run goes on."""


class RecipeChange(Record, frozen=True):
    """One key whose value differs between two recipes."""

    key: str
    before: Any
    after: Any

    @property
    def is_allowed(self) -> bool:
        """Whether a run may go on with this change."""
        return any(f"{self.key}.".startswith(f"{allowed}.") for allowed in CHANGEABLE)

    def __str__(self) -> str:
        return f"{self.key} was {_shown(self.before)} and is now {_shown(self.after)}"


def change_run(
    root: Path, values: Mapping[str, Any], tell: Callable[[str], None] = lambda text: None
) -> RunSetup:
    """Bring what is asked for, and what was edited in `recipe.yaml`, into the set-up of a run that stands.

    `values` are by any unambiguous end of their keys. `tell` hears what changed. A finished run that is given
    more steps is no longer finished. A ConfigError names what cannot be changed.
    """
    layout = LiveLayout(root=root)
    with RunDirectory(root) as directory:
        setup = read_setup(layout.setup)
        with Journal.open(layout.journal) as journal:
            begun = journal.recipe
            if not all(change.is_allowed for change in differences(begun, setup.recipe)):
                journal.check()  # Before another file is blamed for what the journal no longer says.
        _check(begun, setup.recipe, root, source=layout.setup)
        edited = directory.recipe
        _check(begun, edited, root, source=layout.recipe)
        asked = recipe_of(to_dict(edited), values, "--resume")
        asked = replace(asked, run=replace(asked.run, trackers=anchored(asked, Path()).run.trackers))
        _check(begun, asked, root)
        changed = _changed(setup, asked, layout)
        for change in differences(setup.recipe, changed.recipe):
            tell(f"{change}{' (edited in recipe.yaml)' if not values else ''}")
        if changed != setup:
            # In this order: after a crash between the two the change is seen, and made, again.
            write_atomically(layout.recipe, to_yaml(changed.recipe).encode())
            write_atomically(layout.setup, encode_setup(changed))
        if changed.recipe.steps > setup.recipe.steps:
            layout.finished.unlink(missing_ok=True)
    return changed


def differences(before: Recipe, after: Recipe) -> list[RecipeChange]:
    """Every key in which two recipes differ."""
    return list(_differences(to_dict(before), to_dict(after), ""))


def _differences(before: Any, after: Any, path: str) -> Iterator[RecipeChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif before != after:
        yield RecipeChange(key=path, before=before, after=after)


def _check(begun: Recipe, asked: Recipe, root: Path, source: Path | None = None) -> None:
    for change in differences(begun, asked):
        if not change.is_allowed:
            where = "" if source is None else f"{source} was edited: "
            raise ConfigError(
                f"{where}{change.key} is {_shown(change.before)} in the run {root} and cannot become "
                f"{_shown(change.after)} when it goes on",
                hint="leave it as it is, or start another run from the last checkpoint (--set model=...); "
                f"these may change: {', '.join(CHANGEABLE)}",
            )


def _changed(setup: RunSetup, asked: Recipe, layout: LiveLayout) -> RunSetup:
    before = setup.recipe
    if asked.steps < before.steps:
        raise ConfigError(
            f"steps is {before.steps} in the run {layout.root} and cannot become {asked.steps}: "
            "it may only grow",
            hint="interrupt the run where it shall end: what is trained is in its last checkpoint",
        )
    if asked.evaluation.every and not PromptCounts.read(layout.prompts).held_out:
        raise ConfigError(
            f"evaluation.every = {asked.evaluation.every}, but the run {layout.root} holds no rows out",
            hint="set evaluation.every=0",
        )
    instances = asked.devices.instances
    if instances is not None and instances != before.devices.instances:
        setup = with_instances(setup, instances)
    return replace(setup, recipe=_with_falling_rate(before, asked))


def with_instances(setup: RunSetup, instances: int) -> RunSetup:
    """The set-up with another number of instances; a ConfigError where its devices have no room for them."""
    _check_instances(setup.devices, instances)
    recipe = replace(setup.recipe, devices=replace(setup.recipe.devices, instances=instances))
    return replace(setup, recipe=recipe, devices=replace(setup.devices, instances=instances))


def _with_falling_rate(before: Recipe, asked: Recipe) -> Recipe:
    """A learning rate that was to fall until the run's end falls until its new end."""
    schedule = asked.optimizer.learning_rate_schedule
    if schedule.kind == "constant" or schedule.total_updates != before.steps * before.batch.updates:
        return asked
    schedule = replace(schedule, total_updates=asked.steps * asked.batch.updates)
    return replace(asked, optimizer=replace(asked.optimizer, learning_rate_schedule=schedule))


def _check_instances(devices: DeviceLayout, instances: int) -> None:
    is_on_gpus = devices.instance_device != "cpu"
    if is_on_gpus and instances > max(devices.instances, devices.num_gpus):
        raise ConfigError(
            f"devices.instances = {instances} would put more instances on a GPU than the run was planned for",
            hint=f"at most {max(devices.instances, devices.num_gpus)}",
        )


def _shown(value: Any) -> str:
    return "left out" if value is None else str(value)
