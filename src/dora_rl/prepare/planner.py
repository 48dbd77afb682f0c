"""A recipe becomes a plan: the model is there, rows and rewards were looked at, everything has its size.

The rows it read for that are what the run begins with.

Runs in a process of its own, because it needs torch; whatever a newcomer may have got wrong is said here.
"""

import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, ModelError, NoRoom
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.trainer_config import MICRO_BATCH_TOKENS
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.row_stream import load_stream_start
from dora_rl.envs.tokenized_prompts import TokenizedPrompt, tokenize_rows, untokenized_rows
from dora_rl.model.language_model import load_model, save_model
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer, save_tokenizer
from dora_rl.prepare.cluster_devices import ClusterDevices
from dora_rl.prepare.cluster_placement import cluster_placements, found_gpus, on_nodes
from dora_rl.prepare.completion import completed, judged_recipe, placed
from dora_rl.prepare.demonstrations import demonstrated_episodes
from dora_rl.prepare.device_placement import placements
from dora_rl.prepare.disk import disk_entries
from dora_rl.prepare.episode_checks import check_codec, check_context
from dora_rl.prepare.function_checks import check_functions
from dora_rl.prepare.machine import (
    Gpu,
    free_disk_bytes,
    free_memory_bytes,
    gpus,
    memory_bytes,
    num_cores,
)
from dora_rl.prepare.messages import Doing, Given, Report
from dora_rl.prepare.model_choice import computing_note, read_checked, with_computing
from dora_rl.prepare.model_directory import check_routers, model_directory
from dora_rl.prepare.recipe_names import named_data
from dora_rl.prepare.run_memory import RunMemory
from dora_rl.prepare.run_plan import MemoryLimit, RunPlan
from dora_rl.prepare.trainer_memory import num_parameters
from dora_rl.prepare.ways_to_fit import LEAST_PASS_TOKENS, how_to_fit
from dora_rl.run.prompt_table import PromptTable, check_lengths, longest_prompt
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup
from dora_rl.trainer import adapter
from dora_rl.trainer.supervised import Shown, warm_started

_GIB = 2**30
_MOSTLY_FREE = 0.9
"""Share of free memory below which an error about too little memory says that others use some."""


class RunPlanner:
    """One recipe on this machine: everything about the run that can be known before it starts."""

    def __init__(
        self,
        recipe: Recipe,
        run_directory: str,
        report: Report = lambda doing: None,
        given: Given | None = None,
        cluster: ClusterDevices | None = None,
    ) -> None:
        """Look at all that the recipe names, reporting what is being done."""
        given = given or Given()
        self._process_bytes = _own_bytes()
        self._run_directory = run_directory
        self._cluster = cluster
        self._report = report
        self._given_model = given.model
        self._given_objects = given.objects
        report(Doing(what=f"looking for the model '{recipe.model}'"))
        found = Path(given.model) if given.model is not None else model_directory(recipe)
        self._directory, recipe = with_base(found, recipe)
        recipe = with_computing(recipe, self._directory)
        self._model = read_checked(recipe, self._directory)
        check_routers(self._model, recipe)

        rows = named_data(recipe)
        limit = ("patience.step_s", recipe.patience.step_s)
        report(Doing(what=f"reading the rows of {rows.train.name}", limit=limit))
        is_stream = rows.train.stream
        if is_stream and recipe.warm_start.steps:
            raise ConfigError(
                "a warm start shows rows that are all known, and the rows are a stream",
                hint="set warm_start.steps=0",
            )
        data = (
            load_stream_start(rows, recipe.batch.groups, tables=given.tables, objects=given.objects)
            if is_stream
            else load_data(rows, given.tables, needs_prompt=recipe.episode is None)
        )
        judged = judged_recipe(recipe, data.task, rows.train.name)
        check_functions(judged, data.train, report, given.objects)

        # Once: the run begins with what comes of it. What an episode begins with is for its code to say.
        report(Doing(what="tokenizing the rows"))
        tokenizer = load_tokenizer(self._directory)
        self._tokenizer: str = tokenizer.backend_tokenizer.to_str()
        tokenized = tokenize_rows if judged.episode is None else untokenized_rows
        train = tokenized(data.train, tokenizer, rows)
        # Apart: held-out rows that are all too long are an error as well.
        held_out = tokenized(data.held_out, tokenizer, rows) if data.held_out else None
        self._prompts = PromptTable(
            train=train.prompts,
            held_out=held_out.prompts if held_out else (),
            # Those that end a completion of this model.
            stop_tokens=tuple(sorted(load_eos_ids(self._directory))),
            num_overlong=train.num_overlong,
            num_overlong_held_out=held_out.num_overlong if held_out else 0,
            part_rows=data.part_rows(rows, [prompt.row.row for prompt in train.prompts]),
            num_read=data.num_read,
        )
        largest = max(max(prompt.token_ids, default=0) for prompt in self._prompts.all_rows)
        if largest >= self._model.vocab_size:
            raise ModelError(
                f"the tokenizer of {self._directory} has token {largest}; vocab_size in config.json is "
                f"{self._model.vocab_size}",
                hint="copy tokenizer.json from the model that the weights belong to",
            )
        if judged.episode is not None:
            check_codec(judged, self._directory, self._prompts.stop_tokens)
            check_context(judged, self._model.max_positions)
        report(Doing(what="working out who runs where"))
        self._recipe = completed(judged, data.task, self._prompts, self._model.max_positions)

    def plan(self) -> RunPlan:
        """The plan on the best placement that has room; where none has, an error about the best one.

        Its hint names changes of the recipe that were tried and make it fit.
        """
        try:
            return self._planned(self._recipe)[0]
        except NoRoom as error:
            error.hint = how_to_fit(self._recipe, self._figures, num_gpus=len(gpus()))
            raise

    def _figures(self, recipe: Recipe) -> str | None:
        try:
            return self._planned(recipe)[1].figures()
        except ConfigError:
            return None

    def _planned(self, asked: Recipe) -> tuple[RunPlan, RunMemory]:
        prompts, cluster = self._prompts, self._cluster
        longest = longest_prompt(prompts, asked)
        num_rows, num_held_out = len(prompts.train), len(prompts.held_out)
        failure: NoRoom | None = None
        for devices in self._placements(asked):
            limits = tuple(memory_limits(asked, devices, cluster))
            for recipe in _with_passes(asked):
                ledger = RunMemory(recipe, self._model, devices, limits, longest)
                try:
                    engine = ledger.counted(self._process_bytes)
                except NoRoom as error:
                    # Smaller passes, or the next best placement, may need less memory.
                    failure = failure or error
                    continue
                setup = RunSetup(
                    recipe=placed(recipe, devices),
                    run_directory=self._run_directory,
                    model_directory=str(self._directory),
                    engine=engine,
                    devices=devices if cluster is None else on_nodes(devices),
                )
                check_lengths(prompts, setup)
                plan = RunPlan(
                    setup=setup,
                    computing_note=computing_note(recipe, self._model),
                    num_parameters=num_parameters(self._model),
                    num_rows=num_rows,
                    num_held_out=num_held_out,
                    num_overlong=prompts.num_overlong,
                    num_overlong_held_out=prompts.num_overlong_held_out,
                    longest_prompt_tokens=longest,
                    places=limits,
                    memory=tuple(ledger.entries),
                    disk=tuple(
                        disk_entries(self._model, recipe, ledger.sequence_tokens, num_rows + num_held_out)
                    ),
                    free_disk_bytes=free_disk_bytes(Path(self._run_directory).absolute()),
                )
                return plan, ledger
        assert failure is not None, "there is always a placement"
        raise failure

    def _placements(self, asked: Recipe) -> Iterator[DeviceLayout]:
        if self._cluster is not None:
            return cluster_placements(asked, self._model, self._cluster)
        found = gpus() if asked.devices.kind != "cpu" else []
        return placements(asked, self._model, found, num_cores())

    def write_inputs(self, target: Path) -> None:
        """Write what the run begins with: prompts, the tokenizer and, after a warm start, the model."""
        layout, recipe, total = LiveLayout(root=target), self._recipe, self._recipe.warm_start.steps
        self._prompts.write(layout.prompts)
        if recipe.trainer.lora is not None and recipe.trainer.lora.adapter is not None:
            layout.initial_adapter.mkdir(parents=True)
            for name in (adapter.CONFIG, adapter.FACTORS):
                shutil.copyfile(Path(recipe.trainer.lora.adapter) / name, layout.initial_adapter / name)
        layout.tokenizer.write_text(self._tokenizer, encoding="utf-8")
        if not total:
            # Of an adapter the base is where it was, and the rest is copied above.
            if self._given_model is not None and not adapter.is_adapter(Path(self._given_model)):
                shutil.copytree(self._given_model, layout.initial_model)
            return
        limit = ("patience.step_s", recipe.patience.step_s)

        def done(steps: int) -> None:
            self._report(Doing(what="working on the warm start", limit=limit, done=steps, total=total))

        done(0)
        tokenizer = load_tokenizer(self._directory)
        if recipe.episode is None:
            shown = [
                Shown(prompt=prompt.token_ids, response=_answer(prompt, tokenizer))
                for prompt in self._prompts.train
            ]
        else:
            rows = [prompt.row for prompt in self._prompts.train]
            shown = demonstrated_episodes(rows, recipe, self._directory, self._given_objects)
        assert recipe.trainer.model != "auto", "it is known who computes"
        decoder = load_model(self._directory, recipe.trainer.model, dtype=torch.float32)
        started = warm_started(decoder, shown, recipe.warm_start, seed=recipe.seed, done=done)
        save_model(started, dict(started.named_parameters()), layout.initial_model)
        save_tokenizer(tokenizer, layout.initial_model)


def _with_passes(recipe: Recipe) -> Iterator[Recipe]:
    """The recipe with the size of a pass that it asks for, else with smaller and smaller ones."""
    if recipe.trainer.micro_batch_tokens is not None:
        yield recipe
        return
    tokens = MICRO_BATCH_TOKENS
    while tokens >= LEAST_PASS_TOKENS:
        yield replace(recipe, trainer=replace(recipe.trainer, micro_batch_tokens=tokens))
        tokens //= 2


def with_base(found: Path, recipe: Recipe) -> tuple[Path, Recipe]:
    """The directory of the model that is trained; where an adapter is gone on from, the recipe says how."""
    lora = recipe.trainer.lora
    if adapter.is_adapter(found):
        base, _ = adapter.read_adapter_config(found)
        if not base:
            raise ModelError(
                f"the adapter {found} does not name the model it changes",
                hint=f"name both: --set model=MODEL --set trainer.lora.adapter={found}",
            )
        lora, found = adapter.with_adapter(lora, found), model_directory(replace(recipe, model=base))
    elif lora is not None and lora.adapter is not None:
        lora = adapter.with_adapter(lora, Path(lora.adapter).absolute())
    else:
        return found, recipe
    if recipe.warm_start.steps:
        raise ConfigError(
            f"a warm start would change the model that the adapter {lora.adapter} belongs to",
            hint="leave warm_start.steps at 0",
        )
    return found, replace(recipe, trainer=replace(recipe.trainer, lora=lora))


def _answer(prompt: TokenizedPrompt, tokenizer: Any) -> tuple[int, ...]:
    """The token ids of the answer that a warm start shows to a row's prompt."""
    columns = prompt.row.columns
    shown = columns.get("demonstration", columns.get("solution"))
    if not isinstance(shown, str):
        raise ConfigError(
            f"row {prompt.row.row} has no text under 'demonstration' or 'solution' for a warm start to show",
            hint="give the rows such a column, or leave warm_start.steps at 0",
        )
    tokens = tokenizer(shown, add_special_tokens=False)["input_ids"]
    return (*tokens, tokenizer.eos_token_id)


def _own_bytes() -> int:
    """Bytes that Python and torch take by themselves, measured on this very process before it works."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_limits(
    recipe: Recipe, devices: DeviceLayout, cluster: ClusterDevices | None = None
) -> Iterator[MemoryLimit]:
    """Devices in use, each with the share of its free memory that a run may have.

    On a cluster all of it, as nobody has looked what is free, and host memory as one.
    """
    share, asked = recipe.cluster.memory_share, recipe.devices.memory_gib
    if cluster is not None:
        is_on_cpus, host = devices.trainer_device == "cpu", cluster.memory_bytes
        for index, gpu in enumerate([] if is_on_cpus else found_gpus(cluster, asked)):
            yield _memory_limit(f"cuda:{index}", share, asked, gpu.memory_bytes, gpu.memory_bytes)
        yield _memory_limit("cpu" if is_on_cpus else "host", share, asked if is_on_cpus else None, host, host)
        return
    if devices.trainer_device == "cpu":
        yield _memory_limit("cpu", share, asked, memory_bytes(), free_memory_bytes())
        return
    found: list[Gpu] = gpus()
    for index, gpu in enumerate(found):
        yield _memory_limit(f"cuda:{index}", share, asked, gpu.memory_bytes, gpu.usable_bytes)
    yield _memory_limit("host", share, None, memory_bytes(), free_memory_bytes())


def _memory_limit(
    name: str, share: float, asked_gib: float | None, total_bytes: int, free_bytes: int
) -> MemoryLimit:
    """The limit of one device: what the recipe asks for is taken at its word."""
    if asked_gib is not None:
        return MemoryLimit(name=name, num_bytes=int(share * asked_gib * _GIB))
    note = ""
    if free_bytes < _MOSTLY_FREE * total_bytes:
        used = (total_bytes - free_bytes) / _GIB
        note = f", as others use {used:.1f} of the {total_bytes / _GIB:.1f} GiB there"
    return MemoryLimit(name=name, num_bytes=int(share * free_bytes), note=note)
