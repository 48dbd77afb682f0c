"""TRL's argument names, and the recipe keys that say the same.

A name either stands for one key (`KEYS`), or for several, or for a value in other words (`translated`); what
has no counterpart is refused with the reason. Knows names and plain values only.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dora_rl.core.errors import ConfigError

KEYS = {
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.epsilon",
    "chat_template_kwargs": "data.template_options",
    "epsilon_high": "algorithm.loss.clip_high",
    "eval_steps": "evaluation.every",
    "gradient_checkpointing": "trainer.gradient_checkpointing",
    "learning_rate": "optimizer.learning_rate",
    "mask_truncated_completions": "algorithm.overlong.mask",
    "max_completion_length": "response.max_new_tokens",
    "max_grad_norm": "optimizer.max_grad_norm",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_steps": "steps",
    "num_generations": "batch.group_size",
    "output_dir": "run.directory",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "warmup_steps": "optimizer.learning_rate_schedule.warmup_updates",
    "weight_decay": "optimizer.weight_decay",
}
"""TRL's arguments that mean exactly what one recipe key means, by name."""

_REFUSED = {
    "args": "give what a GRPOConfig holds as keywords of their own: learning_rate=1e-6, num_generations=8",
    "bf16": "the precision is trainer.serving_dtype, bfloat16 or float32",
    "fp16": "the precision is trainer.serving_dtype, bfloat16 or float32",
    "logging_steps": "every step is logged, to metrics.jsonl and to run.trackers",
    "num_iterations": "a trajectory is trained on once; batch.updates splits a batch into several updates",
    "num_train_epochs": "a run is as long as `steps` says; rows come again when all were used",
    "per_device_eval_batch_size": "evaluation runs on the rollout engine, whose slots are cluster.slots",
    "use_vllm": "the rollout engine is built in",
    "vllm_mode": "the rollout engine is built in",
}
"""TRL's arguments without a counterpart, with what to do or know instead."""

_LOSSES = ("grpo", "dr_grpo", "bnpo", "dapo", "cispo")
_SCALES = {True: "group", "group": "group", "batch": "batch", False: "none", "none": "none"}


def translated(name: str, value: Any, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Recipe keys and their values for an argument of TRL's; None where the name is not TRL's.

    `given` are all arguments: what some of them mean depends on others.
    """
    if name in KEYS:
        return {KEYS[name]: value}
    if name in _REFUSED:
        raise ConfigError(f"there is no '{name}' here", hint=_REFUSED[name])
    translate = _TRANSLATED.get(name)
    return None if translate is None else translate(value, given)


def _beta(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"algorithm.kl": {"coefficient": value} if value else None}


def _epsilon(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    clips = {"algorithm.loss.clip_low": value}
    return clips if "epsilon_high" in given else clips | {"algorithm.loss.clip_high": value}


def _loss_type(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    if value not in _LOSSES:
        raise ConfigError(f"loss_type = {value!r} is not known", hint=f"one of: {', '.join(_LOSSES)}")
    return {"algorithm.preset": value}


def _scale_rewards(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    if value not in _SCALES:
        raise ConfigError(f"scale_rewards = {value!r} is not known", hint="one of: group, batch, none")
    return {"algorithm.advantage.scale": _SCALES[value]}


def _scheduler(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    kind = {"constant_with_warmup": "constant"}.get(str(value), str(value))
    return {"optimizer.learning_rate_schedule.kind": kind}


def _batch_size(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Groups of a train step from TRL's counts of completions an optimizer step."""
    size = int(given.get("num_generations", 8))
    completions = int(given.get("per_device_train_batch_size", 8)) * int(
        given.get("gradient_accumulation_steps", 1)
    )
    if "generation_batch_size" in given:
        completions = int(given["generation_batch_size"])
    if completions % size:
        raise ConfigError(
            f"{completions} completions a step are no whole groups of num_generations = {size}",
            hint="give batch={'groups': ..., 'group_size': ...} instead",
        )
    return {"batch.groups": completions // size, "batch.group_size": size}


def _report_to(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    names = [value] if isinstance(value, str) else list(value or ())
    return {"run.trackers": [name for name in names if name != "none"]}


_TRANSLATED: dict[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]] = {
    "beta": _beta,
    "epsilon": _epsilon,
    "generation_batch_size": _batch_size,
    "gradient_accumulation_steps": _batch_size,
    "loss_type": _loss_type,
    "lr_scheduler_type": _scheduler,
    "per_device_train_batch_size": _batch_size,
    "report_to": _report_to,
    "scale_rewards": _scale_rewards,
}
