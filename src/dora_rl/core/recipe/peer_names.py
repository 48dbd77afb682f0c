"""What other trainers call what a recipe says: one table, for error messages and for docs/coming_from.md.

A name that stands for a key in other words says how to convert it; one without a counterpart says what to do
or to know instead. Knows names only; what TRL's mean as keywords of a call is `aliases`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dora_rl.core.recipe.aliases import KEYS


class PeerName(NamedTuple):
    """One setting of another trainer, and what says the same here."""

    name: str
    key: str = ""
    """The key that says the same; empty where there is none."""
    how: str = ""
    """How to convert the value, or what to do instead."""


_GROUPS = "a step takes batch.groups prompts of batch.group_size trajectories each"
_PASSES = "a step is split into passes of at most so many tokens; gradients do not depend on it"
_EPOCHS = "steps = rows x epochs / batch.groups; rows come again when all were used"
_WARMUP = "optimizer.learning_rate_schedule.warmup_updates"
_MINI_BATCHES = "updates = train_batch_size / ppo_mini_batch_size"
_BUILT_IN = "the rollout engine is built in"
_PRECISION = "bfloat16 or float32"

PEERS: Mapping[str, tuple[PeerName, ...]] = {
    "TRL": (
        *(PeerName(name, key) for name, key in KEYS.items()),
        PeerName("args", "", "what a GRPOConfig holds are keywords of their own: learning_rate=1e-6"),
        PeerName("beta", "algorithm.kl.coefficient", "0 is `algorithm.kl: null`, the default"),
        PeerName("bf16", "trainer.serving_dtype", _PRECISION),
        PeerName("epsilon", "algorithm.loss.clip_low", "and algorithm.loss.clip_high"),
        PeerName("eval_dataset", "data.held_out"),
        PeerName("fp16", "trainer.serving_dtype", _PRECISION),
        PeerName("generation_batch_size", "batch.groups", f"divided by num_generations: {_GROUPS}"),
        PeerName("gradient_accumulation_steps", "trainer.micro_batch_tokens", _PASSES),
        PeerName("importance_sampling_level", "algorithm.loss.level"),
        PeerName("logging_steps", "", "every step is logged, to metrics.jsonl and to run.trackers"),
        PeerName("loss_type", "algorithm", "a preset's name: grpo, dr_grpo, dapo, bnpo, cispo, ..."),
        PeerName("lr_scheduler_type", "optimizer.learning_rate_schedule.kind"),
        PeerName("model_name_or_path", "model"),
        PeerName("num_iterations", "", "a trajectory is trained on once; batch.updates splits a batch"),
        PeerName("num_train_epochs", "steps", _EPOCHS),
        PeerName("peft_config", "trainer.lora", "rank, alpha and targets"),
        PeerName("per_device_eval_batch_size", "", "evaluation runs on the rollout engine's cluster.slots"),
        PeerName(
            "per_device_train_batch_size",
            "batch.groups",
            "x gradient_accumulation_steps x devices / num_generations: it counts completions there",
        ),
        PeerName("report_to", "run.trackers", "a list"),
        PeerName("reward_funcs", "rewards"),
        PeerName("reward_weights", "rewards", "each has its weight: {function: f, weight: 2}"),
        PeerName("scale_rewards", "algorithm.advantage.scale", "group, batch or none"),
        PeerName("steps_per_generation", "batch.updates", "optimizer updates of a step"),
        PeerName("train_dataset", "data.train"),
        PeerName("use_vllm", "", _BUILT_IN),
        PeerName("vllm_gpu_memory_utilization", "cluster.memory_share"),
        PeerName("vllm_mode", "", _BUILT_IN),
        PeerName("vllm_tensor_parallel_size", "cluster.tensor_parallel"),
    ),
    "verl": (
        PeerName("actor_rollout_ref.actor.clip_ratio", "algorithm.loss.clip_low", "and clip_high"),
        PeerName("actor_rollout_ref.actor.clip_ratio_c", "algorithm.loss.dual_clip"),
        PeerName("actor_rollout_ref.actor.clip_ratio_high", "algorithm.loss.clip_high"),
        PeerName("actor_rollout_ref.actor.clip_ratio_low", "algorithm.loss.clip_low"),
        PeerName("actor_rollout_ref.actor.entropy_coeff", "algorithm.entropy_bonus"),
        PeerName("actor_rollout_ref.actor.grad_clip", "optimizer.max_grad_norm"),
        PeerName("actor_rollout_ref.actor.kl_loss_coef", "algorithm.kl.coefficient"),
        PeerName("actor_rollout_ref.actor.kl_loss_type", "algorithm.kl.estimator"),
        PeerName("actor_rollout_ref.actor.loss_agg_mode", "algorithm.aggregation", "over and length"),
        PeerName("actor_rollout_ref.actor.optim.lr", "optimizer.learning_rate"),
        PeerName("actor_rollout_ref.actor.optim.lr_warmup_steps", _WARMUP),
        PeerName("actor_rollout_ref.actor.optim.weight_decay", "optimizer.weight_decay"),
        PeerName("actor_rollout_ref.actor.ppo_epochs", "", "a trajectory is trained on once"),
        PeerName("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "trainer.micro_batch_tokens"),
        PeerName(
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "trainer.micro_batch_tokens", _PASSES
        ),
        PeerName("actor_rollout_ref.actor.ppo_mini_batch_size", "batch.updates", _MINI_BATCHES),
        PeerName("actor_rollout_ref.actor.use_kl_loss", "algorithm.kl", "null is off"),
        PeerName("actor_rollout_ref.model.enable_gradient_checkpointing", "trainer.gradient_checkpointing"),
        PeerName("actor_rollout_ref.model.path", "model"),
        PeerName("actor_rollout_ref.rollout.gpu_memory_utilization", "cluster.memory_share"),
        PeerName("actor_rollout_ref.rollout.max_num_seqs", "cluster.slots"),
        PeerName("actor_rollout_ref.rollout.n", "batch.group_size"),
        PeerName("actor_rollout_ref.rollout.name", "engine.kind"),
        PeerName("actor_rollout_ref.rollout.temperature", "sampling.temperature"),
        PeerName("actor_rollout_ref.rollout.tensor_model_parallel_size", "cluster.tensor_parallel"),
        PeerName("actor_rollout_ref.rollout.top_k", "sampling.top_k"),
        PeerName("actor_rollout_ref.rollout.top_p", "sampling.top_p"),
        PeerName("algorithm.adv_estimator", "algorithm", "a preset's name: grpo, rloo, ppo (gae), ..."),
        PeerName("algorithm.gamma", "algorithm.advantage.discount", "of the kind gae"),
        PeerName("algorithm.kl_ctrl.kl_coef", "algorithm.kl.coefficient", "with algorithm.kl.into: reward"),
        PeerName("algorithm.lam", "algorithm.advantage.decay", "of the kind gae"),
        PeerName("algorithm.norm_adv_by_std_in_grpo", "algorithm.advantage.scale", "group, or none"),
        PeerName("algorithm.use_kl_in_reward", "algorithm.kl.into", "reward"),
        PeerName("custom_reward_function.name", "rewards", "file.py:function"),
        PeerName("custom_reward_function.path", "rewards", "file.py:function"),
        PeerName("data.filter_overlong_prompts", "data.overlong_prompts", "skip"),
        PeerName("data.max_prompt_length", "data.max_prompt_tokens"),
        PeerName("data.max_response_length", "response.max_new_tokens"),
        PeerName("data.prompt_key", "data.train.columns", "{prompt: NAME}"),
        PeerName("data.shuffle", "data.order", "shuffled, or in_order"),
        PeerName("data.train_batch_size", "batch.groups", "both count prompts"),
        PeerName("data.train_files", "data.train", "a name, or a list of tables"),
        PeerName("data.truncation", "data.overlong_prompts", "error, or skip: prompts are never cut"),
        PeerName("data.val_files", "data.held_out"),
        PeerName("trainer.default_local_dir", "run.directory"),
        PeerName("trainer.logger", "run.trackers", "a list"),
        PeerName("trainer.max_actor_ckpt_to_keep", "checkpoints.keep"),
        PeerName(
            "trainer.n_gpus_per_node", "devices", "found by itself; devices.instances and trainer_ranks"
        ),
        PeerName("trainer.save_freq", "checkpoints.every"),
        PeerName("trainer.test_freq", "evaluation.every"),
        PeerName("trainer.total_epochs", "steps", _EPOCHS),
        PeerName("trainer.total_training_steps", "steps"),
        PeerName("trainer.val_before_train", "evaluation.every", "version 0 is evaluated too"),
    ),
    "OpenRLHF": (
        PeerName("actor_learning_rate", "optimizer.learning_rate"),
        PeerName(
            "advantage_estimator", "algorithm", "grpo (group_norm), dr_grpo, rloo, reinforce++, ppo (gae)"
        ),
        PeerName("apply_chat_template", "data.wrap_in_chat", "messages always go through the template"),
        PeerName("ckpt_path", "run.directory"),
        PeerName("dual_clip", "algorithm.loss.dual_clip"),
        PeerName("eps_clip", "algorithm.loss.clip_low", "and algorithm.loss.clip_high"),
        PeerName("eps_clip_low_high", "algorithm.loss.clip_low", "and algorithm.loss.clip_high"),
        PeerName("eval_steps", "evaluation.every"),
        PeerName("gamma", "algorithm.advantage.discount", "of the kind gae"),
        PeerName("generate_max_len", "response.max_new_tokens"),
        PeerName("init_kl_coef", "algorithm.kl.coefficient", "0 is `algorithm.kl: null`, the default"),
        PeerName("input_key", "data.train.columns", "{prompt: NAME}"),
        PeerName("kl_estimator", "algorithm.kl.estimator"),
        PeerName("label_key", "data.train.columns", "{solution: NAME}"),
        PeerName("lambd", "algorithm.advantage.decay", "of the kind gae"),
        PeerName("lora_alpha", "trainer.lora.alpha"),
        PeerName("lora_rank", "trainer.lora.rank"),
        PeerName("max_ckpt_num", "checkpoints.keep"),
        PeerName("max_epochs", "", "a trajectory is trained on once; batch.updates splits a batch"),
        PeerName("max_norm", "optimizer.max_grad_norm"),
        PeerName("micro_rollout_batch_size", "cluster.slots", "requests an instance decodes at a time"),
        PeerName("micro_train_batch_size", "trainer.micro_batch_tokens", _PASSES),
        PeerName("n_samples_per_prompt", "batch.group_size"),
        PeerName("num_episodes", "steps", _EPOCHS),
        PeerName("pretrain", "model"),
        PeerName("prompt_data", "data.train", "a name, or a list of tables"),
        PeerName("prompt_data_probs", "data.train", "a list of tables, each with its weight"),
        PeerName("prompt_max_len", "data.max_prompt_tokens"),
        PeerName("remote_rm_url", "rewards", "file.py:function"),
        PeerName("rollout_batch_size", "batch.groups", "both count prompts"),
        PeerName("save_path", "run.directory"),
        PeerName("save_steps", "checkpoints.every"),
        PeerName(
            "train_batch_size",
            "batch.updates",
            "updates = rollout_batch_size x n_samples_per_prompt / train_batch_size",
        ),
        PeerName("use_kl_loss", "algorithm.kl.into", "loss"),
        PeerName("vllm_gpu_memory_utilization", "cluster.memory_share"),
        PeerName("vllm_num_engines", "devices.instances"),
        PeerName("vllm_tensor_parallel_size", "cluster.tensor_parallel"),
    ),
    "prime-rl": (
        PeerName("ckpt.interval", "checkpoints.every"),
        PeerName("deployment.num_infer_gpus", "devices.instances"),
        PeerName("deployment.num_train_gpus", "devices.trainer_ranks"),
        PeerName("max_async_level", "control.max_staleness"),
        PeerName("max_steps", "steps"),
        PeerName("model.name", "model"),
        PeerName(
            "orchestrator.batch_size", "batch.groups", "divided by group_size: it counts rollouts there"
        ),
        PeerName("orchestrator.group_size", "batch.group_size"),
        PeerName("orchestrator.max_off_policy_steps", "control.max_staleness", "nothing is dropped here"),
        PeerName("orchestrator.oversampling_factor", "control.active_groups", "a number of groups, R"),
        PeerName("orchestrator.rollouts_per_example", "batch.group_size"),
        PeerName("orchestrator.sampling.max_tokens", "response.max_new_tokens"),
        PeerName("orchestrator.sampling.temperature", "sampling.temperature"),
        PeerName("seq_len", "response.max_new_tokens", "and data.max_prompt_tokens: their sum there"),
        PeerName("trainer.optim.lr", "optimizer.learning_rate"),
        PeerName("wandb.project", "run.trackers", "[wandb]; WANDB_PROJECT names the project"),
    ),
    "AReaL": (
        PeerName("actor.eps_clip", "algorithm.loss.clip_low", "and algorithm.loss.clip_high"),
        PeerName("actor.gradient_checkpointing", "trainer.gradient_checkpointing"),
        PeerName("actor.group_size", "batch.group_size"),
        PeerName("actor.kl_ctl", "algorithm.kl.coefficient"),
        PeerName("actor.mb_spec.max_tokens_per_mb", "trainer.micro_batch_tokens"),
        PeerName("actor.optimizer.gradient_clipping", "optimizer.max_grad_norm"),
        PeerName("actor.optimizer.lr", "optimizer.learning_rate"),
        PeerName("actor.optimizer.weight_decay", "optimizer.weight_decay"),
        PeerName("actor.path", "model"),
        PeerName("actor.ppo_n_minibatches", "batch.updates"),
        PeerName("actor.use_decoupled_loss", "algorithm", "decoupled_ppo"),
        PeerName("async_training", "control.schedule", "sync, one_step_off, partial, dora, ..."),
        PeerName("evaluator.freq_steps", "evaluation.every"),
        PeerName("gconfig.max_new_tokens", "response.max_new_tokens"),
        PeerName("gconfig.n_samples", "batch.group_size"),
        PeerName("gconfig.temperature", "sampling.temperature"),
        PeerName("rollout.max_concurrent_rollouts", "control.active_groups", "a number of groups, R"),
        PeerName("rollout.max_head_offpolicyness", "control.max_staleness"),
        PeerName("saver.freq_steps", "checkpoints.every"),
        PeerName("total_train_epochs", "steps", _EPOCHS),
        PeerName("train_dataset.batch_size", "batch.groups", "both count prompts"),
        PeerName("train_dataset.path", "data.train"),
    ),
}
"""Settings of other trainers, by the trainer."""

_INTRODUCTION = f"""# Coming from {", ".join(list(PEERS)[:-1])} or {list(PEERS)[-1]}

What they call the settings that a recipe has ([all keys](reference.md)). The tables are what error messages
know: an unknown key that stands here is answered with the key to write instead. TRL's names also work as
keywords of `train` ([library](library.md)). Printed by `dora keys --peers`.

Three things are counted otherwise here:

- **A batch** is `batch.groups` prompts of `batch.group_size` trajectories each, over all devices. How it is
  split into passes (`trainer.micro_batch_tokens`) changes memory and speed, not gradients.
- **A run** is as long as `steps` says. Rows come again when all were used; with `data.order: in_order` and
  its option `epochs`, or with a stream, they end.
- **Staleness** is bounded by `control.max_staleness`, in train steps; nothing that was generated is dropped
  for it. 0 is on-policy.
"""

_MOST_SHOWN = 3
"""Most settings of an unknown section that an error translates."""


def suggestion(name: str, value: Any = None) -> str | None:
    """What to write instead of an unknown key; None where no other trainer has it.

    `value` is what was given under that key: of a section of another trainer's, its keys are answered.
    """
    found = _sentences(name)
    if not found and isinstance(value, Mapping):
        found = [text for path in _leaves(name, value) for text in _sentences(path)]
    if not found:
        return None
    more = len(found) - _MOST_SHOWN
    return "; ".join(found[:_MOST_SHOWN]) + (f"; and {more} more: docs/coming_from.md" if more > 0 else "")


def _sentences(name: str) -> list[str]:
    return [_sentence(peers, entry) for peers, entry in _found(name)]


def _found(name: str) -> list[tuple[list[str], PeerName]]:
    """What trainers mean by a name, or by the end of one that only one of their settings has."""
    found: dict[PeerName, list[str]] = {}
    for peer, names in PEERS.items():
        for entry in names:
            if entry.name == name:
                found.setdefault(entry, []).append(peer)
    if not found:
        for peer, names in PEERS.items():
            ends = [entry for entry in names if entry.name.endswith(f".{name}")]
            if len(ends) == 1:
                found.setdefault(ends[0], []).append(peer)
    keys: dict[str, tuple[list[str], PeerName]] = {}
    for entry, peers in found.items():
        keys.setdefault(entry.key, ([], entry))[0].extend(peers)
    return list(keys.values())


def _sentence(peers: list[str], entry: PeerName) -> str:
    if not entry.key:
        return f"{' and '.join(peers)} {'has' if len(peers) == 1 else 'have'} '{entry.name}'; {entry.how}"
    calls = "calls" if len(peers) == 1 else "call"
    how = f" ({entry.how})" if entry.how else ""
    return f"what {' and '.join(peers)} {calls} '{entry.name}' is '{entry.key}' here{how}"


def _leaves(path: str, value: Any) -> Iterator[str]:
    """Paths of the values in a tree."""
    if not isinstance(value, Mapping):
        yield path
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}.{key}", inner)


def page() -> str:
    """The page docs/coming_from.md."""
    parts = [_INTRODUCTION]
    for peer, names in PEERS.items():
        rows = "".join(
            f"| `{entry.name}` | {f'`{entry.key}`' if entry.key else '-'} | {entry.how} |\n"
            for entry in sorted(names)
        )
        parts.append(f"## {peer}\n\n| there | here | |\n|---|---|---|\n{rows}")
    return "\n".join(parts)
