"""The process that trains with TRL: `python -m dora_rl.bench.peer.trl RUN STEPS OUTPUT`.

Takes everything from a run of ours: the model it began with, rows, batch, reward functions, optimizer, loss.
Writes what each step took and earned. TRL is imported here and nowhere else.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import load_named
from dora_rl.core.record import Record
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.scoring.functions import RewardFunction, load_function
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup, read_setup


class PeerStep(Record, frozen=True):
    """One optimizer step of TRL's trainer."""

    at: float
    """Seconds since training began."""
    reward: float
    tokens: float = 0.0
    """Mean tokens of a response; of an episode those that the policy sampled."""


class PeerRun(Record, frozen=True):
    """The steps of a training by TRL's trainer."""

    version: str
    num_threads: int
    steps: tuple[PeerStep, ...]


def train(root: Path, num_steps: int) -> PeerRun:
    """Train the run under `root` again with TRL's GRPOTrainer."""
    import torch
    import trl  # type: ignore[import-not-found, unused-ignore]
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    layout = LiveLayout(root=root)
    setup = read_setup(layout.setup)
    directory = str(layout.initial_model if layout.initial_model.is_dir() else setup.model_directory)
    torch.manual_seed(setup.recipe.seed)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    rows = [{"prompt": row.prompt, **row.columns} for row in load_data(setup.data).train]
    judged: dict[str, Any]
    if setup.recipe.episode is None:
        judged = {"reward_funcs": [_for_trl(load_function(reward)) for reward in setup.scoring.rewards]}
    else:
        teach_tool_calls(tokenizer)
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        environment = load_named(setup.recipe.episode.options["environment"])
        judged = {"reward_funcs": [], "environment_factory": environment}
    clock = _clock()
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=trl.GRPOConfig(**arguments(setup, num_steps, str(root / "peer"))),
        train_dataset=Dataset.from_list(rows),
        callbacks=[clock],
        **judged,
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    return PeerRun(
        version=trl.__version__,
        num_threads=torch.get_num_threads(),
        steps=tuple(
            PeerStep(
                at=at - clock.began_at,
                reward=float(entry["reward"]),
                tokens=float(entry["completions/mean_length"]),
            )
            for at, entry in zip(clock.ended_at, logged, strict=True)
        ),
    )


def arguments(setup: RunSetup, num_steps: int, directory: str) -> dict[str, Any]:
    """A set-up in the arguments of TRL's GRPOConfig; an error where it has none for it."""
    optimizer, algorithm, batch = setup.trainer.optimizer, setup.trainer.algorithm, setup.recipe.batch
    if setup.devices.trainer_device != "cpu" or optimizer.learning_rate_schedule.kind != "constant":
        raise ConfigError("the comparison with TRL is for CPUs and a constant learning rate")
    return {
        "output_dir": directory,
        "use_cpu": True,
        "bf16": False,
        "seed": setup.recipe.seed,
        "max_steps": num_steps,
        "per_device_train_batch_size": batch.trajectories,
        "num_generations": batch.group_size,
        "num_iterations": batch.updates,
        "temperature": setup.recipe.sampling.temperature,
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": optimizer.learning_rate_schedule.warmup_updates,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm or 0.0,
        "beta": algorithm.kl.coefficient if algorithm.kl is not None else 0.0,
        "loss_type": {"token": "bnpo", "sequence": "grpo", "constant": "dr_grpo"}[algorithm.aggregation.over],
        "scale_rewards": _scale(algorithm.advantage),
        **_turns(setup),
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def _turns(setup: RunSetup) -> dict[str, Any]:
    """How long a response may be, and how it is judged; of episodes, a turn and all turns together."""
    episode = setup.recipe.episode
    if episode is None:
        weights = [reward.weight for reward in setup.scoring.rewards]
        return {"max_completion_length": setup.max_new_tokens, "reward_weights": weights}
    return {
        "max_completion_length": episode.max_context_tokens,
        "max_tool_calling_iterations": episode.max_turns - 1,
        "generation_kwargs": {"max_new_tokens": setup.max_new_tokens},
    }


def teach_tool_calls(tokenizer: Any) -> None:
    """Give the tiny model's tokenizer what TRL wants of one: a template that writes calls, and their form.

    What is sampled is not rendered by either side, so the calls that the template writes are never seen.
    """
    written = "message['role'] + '|>' + message['content']"
    calls = (
        "message['role'] + '|>' + (message['content'] or '') + "
        "(message['tool_calls'] | map(attribute='function') | map('tojson') | join | string "
        "if message['tool_calls'] else '')"
    )
    assert written in tokenizer.chat_template, "the comparison is for the tiny model"
    tokenizer.chat_template = tokenizer.chat_template.replace(written, calls)
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
        },
    }


def _scale(advantage: Any) -> str:
    """TRL's name for what a group's advantages are divided by."""
    return "none" if getattr(advantage, "scale", "group") == "none" else "group"


def _for_trl(function: RewardFunction) -> Callable[..., Any]:
    def call(**offered: Any) -> Any:
        return function.call(**function.arguments(offered))

    call.__name__ = function.label
    return call


def _clock() -> Any:
    from transformers import TrainerCallback

    class StepClock(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """When training began and when each step was over."""

        began_at = 0.0

        def __init__(self) -> None:
            self.ended_at: list[float] = []

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.began_at = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.ended_at.append(time.monotonic())

    return StepClock()


if __name__ == "__main__":
    run = train(Path(sys.argv[1]), int(sys.argv[2]))
    Path(sys.argv[3]).write_bytes(msgspec.json.encode(run))
