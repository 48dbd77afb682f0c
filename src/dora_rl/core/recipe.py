"""The recipe: one typed tree for `dora simulate`, `dora plan` and `dora train`.

Frozen, validated at birth, derived values are properties. A field's docstring is its only
documentation and the command line's help. Torch-free.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dora_rl.core.errors import ConfigError

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]

ScheduleName = Literal["sync", "one_step_off", "partial", "async_ratio", "dora_onset", "dora"]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of the tree."""


class Batch(Section, frozen=True):
    """What a train step consumes."""

    groups: Positive = 32
    """Groups a train step takes (B)."""
    group_size: Positive = 8
    """Trajectories of a group (G)."""
    updates: Positive = 1
    """Optimizer updates a train step makes."""

    @property
    def trajectories(self) -> int:
        return self.groups * self.group_size


class Control(Section, frozen=True):
    """How generation and training are orchestrated."""

    schedule: ScheduleName = "dora"
    """Which schedule decides what starts when."""
    max_staleness: Count = 3
    """Hard bound S on how many versions old a trained group may be."""
    active_groups: Positive | None = None
    """Target number R of active groups; left out, a controller finds it."""
    adapt_staleness: bool = False
    """Let a controller lower and raise the bound, never above `max_staleness`."""
    stream: bool = False
    """Hand finished groups to the trainer before the batch is complete."""
    placement: Literal["auto", "exclusive", "shared"] = "auto"
    """One version an instance, several in turn, or whichever costs less."""
    rebalance: bool = True
    """Change instances' versions and move requests between them while they run."""
    refill: bool = True
    """Let instances of an older version start groups while the trainer would starve."""
    kv_reuse: bool = True
    """A moved request takes its KV along instead of being prefilled again."""
    queue_scheduling: bool = True
    """Start a request where there is room when there is room; otherwise deal them out up front."""
    prompt_replication: bool = True
    """Members of a group may run on different instances."""
    redundant_groups: Count = 0
    """Groups started beyond need and aborted when a batch is complete (`async_ratio` only)."""
    filter_zero_variance: bool = False
    """Replace groups whose rewards are all equal."""
    min_members: Positive = 2
    """A group goes on without its failed members while at least this many are left."""
    environment_tries: Positive = 3
    """How often a trajectory is tried when its environment fails."""
    evaluation_share: Share = 0.1
    """Share of an instance's slots that evaluation may use."""
    rebalance_period_s: PositiveFloat = 5.0
    """How often placement is looked at without another reason."""
    kv_watermark: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """Requests start on an instance up to this share of its KV."""
    silence_s: PositiveFloat = 60.0
    """An instance that says nothing for so long is taken for dead."""


class Lognormal(Section, frozen=True, tag="lognormal", tag_field="kind"):
    """Response lengths: lognormal, cut to [min_tokens, max_tokens]."""

    median_tokens: PositiveFloat = 300.0
    sigma: Annotated[float, Meta(ge=0)] = 1.0
    min_tokens: Positive = 16
    max_tokens: Positive = 4096
    sibling_correlation: Share = 0.0
    """Share of the variance of log length that members of a group have in common (prompt difficulty)."""

    def __post_init__(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"lengths.min_tokens = {self.min_tokens} is above lengths.max_tokens = {self.max_tokens}",
                hint="give a range with min_tokens <= max_tokens",
            )


class Empirical(Section, frozen=True, tag="empirical", tag_field="kind"):
    """Response lengths drawn from a file: a JSON list of integers."""

    path: str
    max_tokens: Positive = 32768

    @property
    def sibling_correlation(self) -> float:
        return 0.0


class Turns(Section, frozen=True):
    """Multi-turn episodes: the response is split into turns with environment tokens between them."""

    mean_turns: Annotated[float, Meta(ge=1)] = 1.0
    """Mean number of turns (geometric); 1 is single-turn."""
    environment_tokens: Count = 200
    """Tokens the environment appends after a turn."""
    latency_s: Seconds = 5.0
    """Median time the environment takes for a turn (lognormal)."""
    latency_sigma: Annotated[float, Meta(ge=0)] = 0.8
    failure_rate: Share = 0.0
    """Chance that a turn's environment fails."""


class Task(Section, frozen=True):
    """The prompts and what they cost, as the simulator imagines them."""

    rows: Positive = 17_000
    """Rows of the data set."""
    prompt_tokens: Positive = 128
    """Mean prompt length."""
    lengths: Lognormal | Empirical = field(default_factory=Lognormal)
    turns: Turns = field(default_factory=Turns)
    score_s: Seconds = 0.0
    """Time to score a trajectory."""
    zero_variance_rate: Share = 0.0
    """Share of groups whose rewards come out all equal."""


class Cluster(Section, frozen=True):
    """Devices and how they are split."""

    gpu: str = "H800"
    gpus: Positive = 8
    gpus_per_node: Positive = 8
    rollout_gpus: Positive | None = None
    """GPUs that only generate; left out, the planner chooses."""
    elastic_gpus: Count = 0
    """GPUs that generate until a batch is ready and then train."""
    tensor_parallel: Positive | None = None
    """GPUs of one instance; left out, the planner chooses."""
    slots: Positive = 256
    """Most requests an instance decodes at once."""
    max_versions: Positive = 4
    """Most versions resident on one instance, memory permitting."""
    memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of device memory for weights and KV."""


class Costs(Section, frozen=True):
    """Calibration of the cost models; the defaults are a well-tuned engine and trainer."""

    decode_floor_s: Seconds = 0.0
    """No decode step is faster: launching kernels from the host, which the device's work hides behind."""
    decode_overhead_s: Seconds = 0.001
    """Added to every decode step: scheduling and sampling on the host."""
    bandwidth_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.85
    compute_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of peak that prefill reaches."""
    train_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.4
    """Share of peak that training reaches, forward passes for logprobs included."""
    update_s: Seconds = 0.5
    """Fixed time of an optimizer update."""
    switch_s: Seconds = 5.0
    """Time an elastic device needs to change between generating and training."""
    delta_share: Share = 0.03
    """Bytes of a published delta as a share of the weights; 1 is full weights."""
    publish_s: Seconds = 0.2
    """Time the trainer is held up by publishing, besides copying the delta."""
    expert_imbalance: Annotated[float, Meta(ge=1)] = 1.2
    """Load of the busiest expert over the mean, for mixtures of experts."""


class Faults(Section, frozen=True):
    """What goes wrong in a simulated run."""

    instance_deaths_per_hour: Share = 0.0
    """Share of the instances that die in an hour."""
    restart_s: Seconds = 120.0
    """Time until a dead instance is back."""
    hang_share: Share = 0.0
    """Share of those deaths that are silent."""
    slow_share: Share = 0.0
    """Share of instances that run at half speed."""
    trainer_losses_per_hour: Annotated[float, Meta(ge=0)] = 0.0
    """How often an hour the trainer loses the step in flight."""
    journal_lag_tokens: Count = 64
    """Tokens of an unfinished trajectory that die with its instance."""


class Simulation(Section, frozen=True):
    """What only the simulator needs."""

    warmup_steps: Count = 2
    """Steps left out of the averages while the pipeline fills."""
    estimates: Literal["learned", "oracle", "half", "double"] = "learned"
    """What control knows: what it saw, the truth, or the former wrong by a factor of two."""
    costs: Costs = field(default_factory=Costs)
    faults: Faults = field(default_factory=Faults)


class Recipe(Section, frozen=True):
    """A whole set-up."""

    model: str = "Qwen2.5-7B"
    """A model the cost models know."""
    seed: int = 0
    steps: Positive = 12
    """Train steps of the run."""
    batch: Batch = field(default_factory=Batch)
    control: Control = field(default_factory=Control)
    cluster: Cluster = field(default_factory=Cluster)
    task: Task = field(default_factory=Task)
    simulation: Simulation = field(default_factory=Simulation)

    def __post_init__(self) -> None:
        self._check_active_groups()
        self._check_devices()
        if self.control.filter_zero_variance and self.task.zero_variance_rate == 1.0:
            raise ConfigError(
                "task.zero_variance_rate = 1 with control.filter_zero_variance leaves no group to train on",
                hint="lower the rate, or switch the filter off",
            )
        if self.control.min_members > self.batch.group_size:
            raise ConfigError(
                f"control.min_members = {self.control.min_members} is above "
                f"batch.group_size = {self.batch.group_size}",
                hint="a group cannot keep more members than it has",
            )

    def _check_active_groups(self) -> None:
        target, needed = self.control.active_groups, self.batch.groups
        if target is not None and target < needed:
            raise ConfigError(
                f"control.active_groups = {target} is below batch.groups = {needed}: no batch would fill",
                hint=f"set control.active_groups to at least {needed}, or leave it out",
            )

    def _check_devices(self) -> None:
        c = self.cluster
        rollout_gpus = c.rollout_gpus or 0
        if rollout_gpus + c.elastic_gpus > c.gpus:
            raise ConfigError(
                f"cluster.rollout_gpus + cluster.elastic_gpus = {rollout_gpus + c.elastic_gpus} is more than "
                f"cluster.gpus = {c.gpus}",
                hint="lower rollout_gpus, or leave it out to let the planner choose",
            )
        if rollout_gpus == c.gpus:
            raise ConfigError(
                f"cluster.rollout_gpus = {c.gpus} takes every GPU: none is left to train",
                hint="lower rollout_gpus, or make them elastic_gpus, which generate and train in turn",
            )
        if c.tensor_parallel is not None:
            self._check_instances(c.tensor_parallel)

    def _check_instances(self, tensor_parallel: int) -> None:
        c = self.cluster
        if tensor_parallel > c.gpus:
            raise ConfigError(
                f"cluster.gpus = {c.gpus} is less than one instance: "
                f"cluster.tensor_parallel = {tensor_parallel}",
                hint="lower tensor_parallel, or leave it out to let the planner choose",
            )
        for name, gpus in (("rollout_gpus", c.rollout_gpus or 0), ("elastic_gpus", c.elastic_gpus)):
            if gpus % tensor_parallel:
                raise ConfigError(
                    f"cluster.{name} = {gpus} is no multiple of cluster.tensor_parallel = {tensor_parallel}",
                    hint="an instance needs tensor_parallel GPUs",
                )
