"""A model and rows become what sampling begins with: no trainer, no schedule, one version.

Prompts, tokenizer and the model as version 0 of a store lie in one directory, and the engine is sized for all
the memory there is. Prompts are of held-out rows or, where there are none, of those to train on. Needs torch.
"""

from pathlib import Path

import torch
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Batch, Control, Recipe
from dora_rl.core.recipe.data import DataConfig
from dora_rl.core.recipe.live import WarmStart
from dora_rl.envs.data.sources import Data, Tables, load_data, load_rows
from dora_rl.envs.tasks.task import Task
from dora_rl.envs.tokenized_prompts import tokenize_rows, untokenized_rows
from dora_rl.model.language_model import load_model
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer
from dora_rl.prepare.completion import judged_recipe
from dora_rl.prepare.episode_checks import check_codec, check_context
from dora_rl.prepare.function_checks import check_functions
from dora_rl.prepare.machine import gpus, num_cores
from dora_rl.prepare.messages import Doing, Given, Report
from dora_rl.prepare.model_choice import read_checked, with_computing
from dora_rl.prepare.model_directory import model_directory
from dora_rl.prepare.planner import memory_limits, with_base
from dora_rl.prepare.run_memory import RunMemory
from dora_rl.run.prompt_table import PromptTable, check_lengths, longest_prompt
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup
from dora_rl.trainer.adapter import load_factors, merge_adapter
from dora_rl.weights.store import Store


def prepare_sampling(
    recipe: Recipe, target: Path, report: Report, given: Given, *, is_judged: bool
) -> RunSetup:
    """Leave in `target` what sampling begins with; returns its set-up. Rewards are looked at if wanted."""
    report(Doing(what=f"looking for the model '{recipe.model}'"))
    found = Path(given.model) if given.model is not None else model_directory(recipe)
    # What made the model is over: an adapter is only merged.
    directory, recipe = with_base(found, replace(recipe, warm_start=WarmStart()))
    recipe = with_computing(recipe, directory)
    model = read_checked(recipe, directory)

    if recipe.data is None:
        raise ConfigError(
            "there are no rows to answer", hint="name a recipe, or set data.train.name to a task or a file"
        )
    report(Doing(what="reading rows", limit=("patience.step_s", recipe.patience.step_s)))
    config = recipe.data
    data = answered_data(config, given.tables, needs_prompt=recipe.episode is None or not is_judged)
    rows = (data.held_out or data.train)[: recipe.evaluation.max_rows]
    # Whoever wants answers to prompts wants one to each, whatever plays in training.
    judged = judged_recipe if is_judged else _unjudged
    recipe = _settled(judged(recipe, data.task, config.train.name), data)
    if recipe.episode is not None and recipe.frozen_versions:
        raise ConfigError(
            "the initial model of a run plays a role of its episodes, and there is no run here",
            hint="serve it with `dora serve MODEL`, and set roles.NAME.url and roles.NAME.version=null",
        )
    if is_judged:
        check_functions(recipe, rows, report, given.objects)

    report(Doing(what="tokenizing the rows"))
    tokenizer, layout = load_tokenizer(directory), LiveLayout(root=target)
    tokenized = tokenize_rows if recipe.episode is None else untokenized_rows
    answered = tokenized(rows, tokenizer, config).prompts
    prompts = PromptTable(
        train=() if data.held_out else answered,
        held_out=answered if data.held_out else (),
        stop_tokens=tuple(sorted(load_eos_ids(directory))),
    )
    prompts.write(layout.prompts)
    if recipe.episode is not None:
        check_codec(recipe, directory, prompts.stop_tokens)
        check_context(recipe, model.max_positions)
    layout.tokenizer.write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")

    devices = generating_devices(recipe)
    longest = longest_prompt(prompts, recipe)
    sized = RunMemory(recipe, model, devices, tuple(memory_limits(recipe, devices)), longest).add_engines()
    setup = RunSetup(
        recipe=recipe,
        run_directory=str(target),
        model_directory=str(directory),
        engine=sized.config,
        devices=devices,
    )
    check_lengths(prompts, setup)
    report(Doing(what="reading the model"))
    with Store(layout.versions) as store:
        store.publish(0, served_tensors(directory, recipe))
    return setup


def answered_data(config: DataConfig, tables: Tables, *, needs_prompt: bool = True) -> Data:
    """The rows that may be answered; of a stream nothing is read, as it may have no end."""
    if not config.train.stream:
        return load_data(config, tables, needs_prompt=needs_prompt)
    if config.held_out is None:
        raise ConfigError(
            f"the rows of '{config.train.name}' are a stream, and none are held out to be answered",
            hint="set data.held_out.name=test.jsonl, say",
        )
    held_out = load_rows(config.held_out, config.seed, tables, needs_prompt=needs_prompt)
    return Data(train=[], held_out=held_out, task=None)


def _settled(recipe: Recipe, data: Data) -> Recipe:
    """The recipe with the task's length where it was silent, and nothing of training."""
    task = data.task
    max_new_tokens = recipe.response.max_new_tokens or (task.max_new_tokens if task is not None else None)
    if max_new_tokens is None:
        raise ConfigError(
            "nothing says how long a response may be", hint="set response.max_new_tokens=256, say"
        )
    return replace(
        recipe,
        response=replace(recipe.response, max_new_tokens=max_new_tokens),
        batch=Batch(groups=1, group_size=2),
        control=Control(
            schedule="sync",
            max_staleness=0,
            silence_s=recipe.control.silence_s,
            environment_tries=recipe.control.environment_tries,
        ),
    )


def _unjudged(recipe: Recipe, task: Task | None, source: str) -> Recipe:
    """The recipe without what judges: rewards and episodes."""
    return replace(recipe, rewards=(), episode=None)


def generating_devices(recipe: Recipe) -> DeviceLayout:
    """One instance on all cores, or one on each GPU."""
    asked = recipe.devices
    found = gpus() if asked.kind != "cpu" else []
    if asked.kind == "cuda" and not found:
        raise ConfigError(
            "devices.kind is cuda, but torch sees no GPU here",
            hint="`dora doctor` says why; or set devices.kind=cpu",
        )
    if not found:
        return DeviceLayout(instances=1, instance_threads=asked.instance_threads or num_cores())
    return DeviceLayout(
        instances=asked.instances or len(found),
        instance_device="cuda",
        num_gpus=len(found),
        trainer_device="cuda:0",
        instance_threads=asked.instance_threads or 1,
    )


def served_tensors(directory: Path, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The weights of a model as an engine holds them, its adapter merged."""
    assert recipe.trainer.model != "auto", "it is known who computes"
    decoder = load_model(directory, recipe.trainer.model, dtype=torch.float32)
    lora = recipe.trainer.lora
    if lora is not None and lora.adapter is not None:
        merge_adapter(decoder, lora, load_factors(Path(lora.adapter)))
    decoder = decoder.to(getattr(torch, recipe.trainer.serving_dtype))
    return {name: parameter.detach() for name, parameter in decoder.named_parameters()}
