"""The trainer: groups in, one version further, metrics out.

    begin_step(B)     a step of B groups starts
    add(groups)       micro-batches run when they are full, an update when its mini-batch is complete
    finish_step()     the last update, the next version

`train(batch)` is these three in a row. Gradients are summed without the one factor that depends on the whole
mini-batch, which is applied before the update; so nothing but the order of summation depends on when groups
came or how they were packed. Every rank is given the same groups and runs its share of the micro-batches.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from torch import Tensor

from dora_rl.algorithms.aggregation import BatchCounts
from dora_rl.algorithms.custom import load_advantage
from dora_rl.algorithms.losses import loss_of
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.named import Objects
from dora_rl.core.recipe.algorithm import CustomAdvantageConfig
from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.trainer.checkpoint import load_checkpoint
from dora_rl.trainer.data_warnings import Watch
from dora_rl.trainer.examples import Example, PreparedExamples, batch_scale, prepared
from dora_rl.trainer.export import HostCheckpoint, host_checkpoint, prepare_checkpoints
from dora_rl.trainer.frozen_scores import own_share
from dora_rl.trainer.host_memory import HostMemory
from dora_rl.trainer.kept import KeptVersions
from dora_rl.trainer.logprob_scorer import LogprobScorer
from dora_rl.trainer.loss_meters import LossMeters, Totals
from dora_rl.trainer.objective import Objective
from dora_rl.trainer.optimizer import Optimizer
from dora_rl.trainer.policy import LearningBatch, Policy
from dora_rl.trainer.protocol import Metrics
from dora_rl.trainer.ranks import Alone, Ranks
from dora_rl.trainer.rehearsal import made_up_group
from dora_rl.trainer.step import StepError, StepGroups
from dora_rl.trainer.step_report import StepReport
from dora_rl.trainer.tensors import micro_batch_of, sampled_at
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup
from dora_rl.trainer.trained_weights import Weights


class Trainer:
    """Trains one policy; `version` is the one that the next step trains. Implements PolicyTrainer."""

    def __init__(
        self,
        weights: Weights,
        config: TrainerConfig,
        *,
        version: int = 0,
        reference: Policy | None = None,
        ranks: Ranks | None = None,
        kept: KeptVersions | None = None,
        max_response_tokens: int | None = None,
        objects: Objects | None = None,
    ) -> None:
        """`objects` are the user's own objects for the names `object:LABEL` in the configuration."""
        config = self.config = _with_cap(config, max_response_tokens)
        self.weights = weights
        self.ranks = ranks or Alone()
        self.optimizer = Optimizer(weights, config.optimizer, self.ranks)
        self.watch = Watch(config.gap, is_corrected=config.algorithm.correction is not None)
        self._max_response_tokens = max_response_tokens
        self._memory = HostMemory()
        self._device = weights.policy.decoder.device
        algorithm, is_one_update = config.algorithm, config.updates == 1
        self._loss = loss_of(algorithm.loss, objects)
        self._needs_proximal = self._loss.needs_proximal and not is_one_update
        self._own_advantage = (
            load_advantage(algorithm.advantage, objects)
            if isinstance(algorithm.advantage, CustomAdvantageConfig)
            else None
        )
        self._objective = Objective(algorithm, self._loss, proximal_is_current=is_one_update)
        self.kept = kept
        self._scorer = LogprobScorer(
            weights.policy,
            config,
            needs_proximal=self._needs_proximal,
            reference=reference,
            kept=kept,
            ranks=self.ranks,
            device=self._device,
        )
        self._step: StepGroups | None = None
        self._check(reference)
        self.become(version)

    @property
    def is_first(self) -> bool:
        """Whether this rank publishes, writes and speaks for all."""
        return self.ranks.rank == 0

    # --- a step ---------------------------------------------------------------------------------

    @property
    def streaming_refusal(self) -> str | None:
        """Why nothing can run before the batch is complete; None where it can."""
        advantage = self._own_advantage or self.config.algorithm.advantage
        assert not isinstance(advantage, CustomAdvantageConfig), "its function is loaded"
        if advantage.whole_batch_reason is not None:
            return advantage.whole_batch_reason
        if self._needs_proximal:
            return (
                "the proximal policy is that of the step's start, and has to see all groups before an update"
            )
        return None

    def train(self, batch: TrainBatch) -> Metrics:
        """Train one whole step on a batch."""
        self.begin_step(len(batch.groups))
        self.add(batch.groups)
        return self.finish_step()

    def begin_step(self, num_groups: int) -> None:
        """Start a step that takes exactly so many groups."""
        self.check_idle()
        is_whole = self.streaming_refusal is not None
        self._step = StepGroups(num_groups, self.config.updates, is_whole=is_whole)
        self._report = StepReport(started_s=time.perf_counter())
        self._begin_mini_batch()

    def _begin_mini_batch(self) -> None:
        self._meters = LossMeters(self._device, of_loss=self._loss.metrics)
        self._pending: list[Example] = []
        self._counts = BatchCounts(num_tokens=0, num_trajectories=0)

    def add(self, groups: Sequence[TrainGroup]) -> None:
        """Take in finished groups of the step, and run what can run before the others are there."""
        for together, parts in self._begun().accept(groups):
            ready = self._prepared(together)
            for reason, count in ready.masked.items():
                self._report.masked[reason] = self._report.masked.get(reason, 0) + count
            for first, last, is_last in parts:
                examples = [each for each in ready.examples if first <= each.place < last]
                self._pending += examples
                self._counts = BatchCounts(
                    num_tokens=self._counts.num_tokens + sum(len(each.weights_P) for each in examples),
                    num_trajectories=self._counts.num_trajectories + len(examples),
                )
                self._run(self._pending if is_last else self._full())
                if is_last:
                    self._end_mini_batch()

    def _end_mini_batch(self) -> None:
        """Update the weights with the mini-batch, which is complete; without a token there is no update."""
        totals = self._meters.totals(self.ranks)
        if self._counts.num_tokens:
            scale = batch_scale(self.config.algorithm.aggregation, self._counts)
            self._check_loss(totals)
            update = self.optimizer.update(scale, is_loss_finite=totals.is_loss_finite)
            self._report.add(totals, update, scale, self._counts)
        else:
            # Not of zero gradients: moments and decay would move the weights all the same.
            self.weights.forget()
            self._report.add_empty(totals)
        self._begin_mini_batch()

    def finish_step(self) -> Metrics:
        """End the step: the next version is what the weights are now."""
        step = self._begun()
        if not step.is_complete:
            raise StepError(f"step {self.version} lacks {step.num_missing} groups")
        metrics = self._report.metrics(
            step.groups, version=self.version, learning_rate=self.optimizer.learning_rate
        )
        metrics |= self.watch.look(metrics, step.groups)
        self._step = None
        self.become(self.version + 1)
        return metrics

    def abandon_step(self) -> None:
        """Forget a step that has made no update yet, as if it had not begun."""
        self._begun()
        if self._report.updates:
            raise StepError(
                f"step {self.version} has updated the weights already", hint="load the last checkpoint"
            )
        self.weights.forget()
        self._step = None

    def rehearse(self) -> None:
        """Run a made-up micro-batch and forget it: what the first step would wait for is compiled then.

        Not where code of the user's would see it.
        """
        if self._loss.is_users or self._own_advantage is not None:
            return
        model = self.weights.policy.decoder.config
        group = made_up_group(
            self.config.micro_batch_tokens,
            longest=min(model.max_positions, 1 + (self._max_response_tokens or model.max_positions)),
            vocab_size=model.vocab_size,
            version=self.version,
        )
        self.begin_step(1)
        self._run(self._prepared([group]).examples)
        self.abandon_step()

    def become(self, version: int) -> None:
        """Set the version that the weights are of from now on."""
        self.version = version
        if self.kept is not None:
            self.kept.keep(version, self.weights.served())

    def check_idle(self) -> None:
        """Refuse a call that may only be made between two steps."""
        if self._step is not None:
            raise StepError(f"step {self.version} is in progress", hint="call finish_step first")

    # --- publishing -----------------------------------------------------------------------------

    def served_tensors(self) -> dict[str, Tensor]:
        """The tensors of the current version, in the serving dtype, under the Decoder's own names.

        Every rank puts each tensor together, and the first keeps it. On one device these are the trainer's
        own: copy them before the next step changes them.
        """
        return {name: tensor for name, tensor in self.weights.served() if self.is_first}

    # --- checkpoints ----------------------------------------------------------------------------

    def prepare_checkpoints(self) -> None:
        """Touch the host memory that checkpoints from a device take: training would stand still for it."""
        prepare_checkpoints(self, self._memory)

    def take_checkpoint(self) -> HostCheckpoint | None:
        """The current version and the state to go on from, in host memory; None on ranks but the first."""
        return host_checkpoint(self, self._memory)

    def load_checkpoint(self, state: Path) -> None:
        """Go on exactly as the trainer that wrote this state would have."""
        load_checkpoint(self, state)

    # --- inside a step --------------------------------------------------------------------------

    def _check(self, reference: Policy | None) -> None:
        algorithm = self.config.algorithm
        if algorithm.kl is not None and reference is None:
            raise ConfigError("a KL to a reference needs a reference model")
        if algorithm.overlong.penalty and self._max_response_tokens is None:
            raise ConfigError(
                "an overlong penalty needs to know the length cap", hint="give max_response_tokens"
            )

    def _begun(self) -> StepGroups:
        if self._step is None:
            raise StepError("no step has begun", hint="call begin_step first")
        return self._step

    def _full(self) -> list[Example]:
        """Take off pending examples, in order, that fill a micro-batch of every rank."""
        room = self.config.micro_batch_tokens * self.ranks.size
        full: list[Example] = []
        while sum(each.trajectory.num_tokens for each in self._pending) >= room:
            num_tokens = num_taken = 0
            for each in self._pending:
                num_tokens += each.trajectory.num_tokens
                if num_taken and num_tokens > room:
                    break
                num_taken += 1
            full += self._pending[:num_taken]
            del self._pending[:num_taken]
        return full

    def _prepared(self, groups: Sequence[TrainGroup]) -> PreparedExamples:
        return prepared(
            groups,
            self._scorer.scores_of(groups),
            self.config.algorithm,
            max_response_tokens=self._max_response_tokens,
            own_advantage=self._own_advantage,
        )

    def _run(self, examples: Sequence[Example]) -> None:
        """Run forward and backward of this rank's share; gradients add up."""
        lengths = [each.trajectory.num_tokens for each in examples]
        temperatures = [sampled_at(each.trajectory) for each in examples]
        for members in own_share(lengths, temperatures, self.config.micro_batch_tokens, self.ranks):
            batch = micro_batch_of(
                [examples[i] for i in members], self.version, is_untouched=not self._report.updates
            ).to(self._device)
            loss = self.weights.policy(LearningBatch(batch, self._objective, self._meters))
            loss.backward()
            self._report.num_micro_batches += 1

    def _check_loss(self, totals: Totals) -> None:
        """Refuse a user's own loss that is no number; a built-in one only costs the update."""
        if self._loss.is_users and totals.are_logprobs_finite and not totals.is_loss_finite:
            raise UserError(
                f"{self._loss.name} returned what is not finite in step {self.version}, of logprobs that are",
                hint="guard what it divides by, and hold what it exponentiates within bounds",
            )


def _with_cap(config: TrainerConfig, max_response_tokens: int | None) -> TrainerConfig:
    """The configuration, with the length cap where its aggregation divides by that."""
    aggregation = config.algorithm.aggregation
    if aggregation.over != "constant" or aggregation.length is not None:
        return config
    if max_response_tokens is None:
        raise ConfigError(
            "aggregation.over = constant needs to know the length cap",
            hint="give max_response_tokens, or set aggregation.length",
        )
    filled = replace(aggregation, length=max_response_tokens)
    return replace(config, algorithm=replace(config.algorithm, aggregation=filled))
