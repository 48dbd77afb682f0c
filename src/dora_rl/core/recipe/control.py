"""What a train step consumes, how generation and training are orchestrated, and how devices are split."""

from typing import Annotated, Literal

from msgspec import Meta

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Section, Share

ScheduleName = Literal[
    "sync", "one_step_off", "steps_off", "partial", "counted", "async_ratio", "dora_onset", "dora"
]


class Batch(Section, frozen=True):
    """The size of a train step: groups, trajectories a group, optimizer updates."""

    groups: Positive = 32
    """Groups a train step takes (B)."""
    group_size: Positive = 8
    """Trajectories of a group (G)."""
    updates: Positive = 1
    """Optimizer updates a train step makes, each with some of its groups."""

    def __post_init__(self) -> None:
        if self.updates > self.groups:
            raise ConfigError(
                f"batch.groups = {self.groups} cannot be split into batch.updates = {self.updates}",
                hint=f"set batch.updates to at most {self.groups}: each update takes whole groups",
            )

    @property
    def trajectories(self) -> int:
        """Trajectories of a train step, B x G."""
        return self.groups * self.group_size


class Control(Section, frozen=True):
    """How generation and training are orchestrated."""

    schedule: ScheduleName = "dora"
    """Which schedule decides what starts when."""
    max_staleness: Count = 3
    """Hard bound S on how many versions old a trained group may be; that of `sync` is 0 and that of
    `one_step_off` 1, whatever stands here; under `steps_off` every group is exactly that old, and under
    `counted` it bounds only how many groups start."""
    active_groups: Positive | None = None
    """Target number R of active groups; left out, a controller finds it, or the schedule fixes it: `sync`,
    `one_step_off`, `steps_off` and `async_ratio` take no other than their own."""
    freshness_cost: Share = 0.02
    """Share of speed that may be given up for fresher groups, where a controller finds R."""
    adapt_staleness: bool = False
    """Let a controller lower and raise the bound, never above `max_staleness`."""
    stream: bool = False
    """Hand finished groups to the trainer before the batch is complete; refused for algorithms that need the
    whole batch."""
    placement: Literal["auto", "exclusive", "shared"] = "auto"
    """Serve one version an instance, several in turn, or whichever costs less."""
    rebalance: bool = True
    """Change instances' versions and move requests between them while they run."""
    refill: bool = False
    """Start groups on instances of an older version while the trainer would starve: staler, seldom faster."""
    kv_reuse: bool = True
    """A moved request takes its KV along instead of being prefilled again."""
    queue_scheduling: bool = True
    """Start a request when and where there is room; otherwise deal requests out up front."""
    long_first: bool = False
    """After each publish start first, of the next B prompts, those whose responses were long before."""
    prompt_replication: bool = True
    """Members of a group may start on different instances. Without it a group starts where there is room for
    all of them; a move or a death may part them later."""
    async_ratio: PositiveFloat | None = None
    """Asynchronous ratio alpha of `async_ratio`: (alpha + 1) B groups are active; `max_staleness`, which is
    alpha rounded up, where it is left out."""
    suspend: bool = False
    """At each publish suspend what generates and resume it under the new version (`async_ratio` only)."""
    redundant_groups: Count = 0
    """Groups started beyond need and aborted when a batch is complete: for good under `async_ratio`; under
    `sync` their prompts are put off to a round of their own, once they fill one. For no other schedule."""
    redundant_members: Count = 0
    """Members of each group that are aborted when all others are scored (`async_ratio` only)."""
    filter_zero_variance: bool = False
    """Replace groups whose rewards are all equal."""
    min_members: Positive = 2
    """Least members of a group that goes on without the failed ones; left out, one in a group of one."""
    environment_grace_s: PositiveFloat = 30.0
    """Seconds for which a train step may wait for nothing but environments; then the episodes it waits for
    end as `truncated: deadline`."""
    environment_tries: Positive = 3
    """How often a trajectory is tried when its environment fails."""
    evaluation_share: Share = 0.1
    """Share of an instance's slots that evaluation may use."""
    role_share: Share = 0.5
    """Share of an instance's slots that turns of roles may use which a frozen version plays."""
    rebalance_period_s: PositiveFloat = 5.0
    """Seconds after which placement is looked at again without another reason."""
    kv_watermark: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """Share of an instance's KV up to which requests start on it."""
    silence_s: PositiveFloat = 15.0
    """Seconds without a sign of life after which an instance is taken for dead."""

    @property
    def staleness_bound(self) -> int:
        """The bound S that holds: two schedules have one of their own."""
        return {"sync": 0, "one_step_off": 1}.get(self.schedule, self.max_staleness)

    @property
    def fixes_target(self) -> bool:
        """Whether the schedule has a number of active groups of its own."""
        return self.schedule == "async_ratio" or self.fixes_versions

    @property
    def fixes_versions(self) -> bool:
        """Whether the schedule says of each batch which version its groups are of."""
        return self.schedule in ("sync", "one_step_off", "steps_off")

    @property
    def aborts(self) -> bool:
        """Whether groups or members are started that nothing is trained on."""
        return bool(self.redundant_groups or self.redundant_members)

    @property
    def mixes_versions(self) -> bool:
        """Whether trajectories go on under newer versions than they began with."""
        return self.suspend or self.schedule in ("partial", "counted")


class Cluster(Section, frozen=True):
    """The devices that are simulated or planned for, and how they are split; the Ray cluster that trains."""

    ray: str | None = None
    """The Ray cluster that trains: `auto`, the one this machine is a node of, or an address, `HOST:PORT`. The
    run directory and the model must be on storage that all its nodes share. Left out, this machine trains."""
    host: str | None = None
    """The address of this machine that workers on the Ray cluster connect to, over a network that is private;
    left out, the one by which Ray knows it."""
    gpu: str = "H800"
    """Kind of GPU that the cost models assume, such as `H100` or `H800`; training uses the devices there
    are."""
    gpus: Positive = 8
    """GPUs in all, those that generate and those that train."""
    gpus_per_node: Positive = 8
    """GPUs of one machine, which are linked to each other."""
    rollout_gpus: Positive | None = None
    """GPUs that only generate; left out, the planner chooses."""
    elastic_gpus: Count = 0
    """GPUs that generate until a batch is ready and then train."""
    tensor_parallel: Positive | None = None
    """GPUs of one instance; left out, the planner chooses."""
    slots: Positive = 256
    """Most requests an instance decodes at once."""
    max_versions: Positive = 4
    """Most versions resident on one instance, memory permitting; in training at least two, for an instance
    takes up the next version beside the one it serves."""
    memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of device memory for weights and KV."""
