"""The whole recipe, and the checks that concern more than one of its parts."""

from msgspec import field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import AlgorithmConfig
from dora_rl.core.recipe.control import Batch, Cluster, Control
from dora_rl.core.recipe.data import DataConfig, RewardConfig, ScoringSettings
from dora_rl.core.recipe.episodes import EpisodeSettings, RoleSettings
from dora_rl.core.recipe.generation import EngineSettings, ResponseSettings, Sampling
from dora_rl.core.recipe.live import Checkpoints, Devices, Evaluation, Patience, RunSettings, WarmStart
from dora_rl.core.recipe.section import Positive, Section
from dora_rl.core.recipe.simulation import ImaginedTask, Simulation
from dora_rl.core.recipe.trainer_config import OptimizerConfig, TrainerSettings

BUILT_IN_MODELS = ("tiny", "smollm2")


class Recipe(Section, frozen=True):
    """The whole set-up of a run, simulation or plan."""

    model: str = "Qwen2.5-7B"
    """What is trained: a directory in Hugging Face format, or `tiny` or `smollm2`, which are built in. To
    simulate and plan: a model the cost models know."""
    seed: int = 0
    """Seed of every draw of the run: prompts, tokens, fresh LoRA factors."""
    steps: Positive = 12
    """Number of train steps of the run."""
    batch: Batch = field(default_factory=Batch)
    control: Control = field(default_factory=Control)
    cluster: Cluster = field(default_factory=Cluster)
    data: DataConfig | None = None
    """Rows to train on and to hold out; only training needs them."""
    rewards: tuple[RewardConfig, ...] = ()
    """Reward functions, of which a weighted sum judges a trajectory; left out, the built-in task's own."""
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    episode: EpisodeSettings | None = None
    """Several turns with an environment; left out, a row is a prompt with one response."""
    roles: dict[str, RoleSettings] | None = None
    """Whom episodes speak to beside the policy, by name: `chat.role(NAME)`."""
    sampling: Sampling = field(default_factory=Sampling)
    response: ResponseSettings = field(default_factory=ResponseSettings)
    warm_start: WarmStart = field(default_factory=WarmStart)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """How the policy learns from a batch. In a file also the name of a preset (`grpo`, `dapo`, ...), or its
    name and what differs from it: `{preset: dapo, entropy_bonus: 0.001}`."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    devices: Devices = field(default_factory=Devices)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    patience: Patience = field(default_factory=Patience)
    run: RunSettings = field(default_factory=RunSettings)
    task: ImaginedTask = field(default_factory=ImaginedTask)
    simulation: Simulation = field(default_factory=Simulation)

    def __post_init__(self) -> None:
        self._check_active_groups()
        self._check_devices()
        self._check_roles()
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

    @property
    def frozen_versions(self) -> tuple[int, ...]:
        """The versions that play roles, and so are kept to the end of the run: 0, the initial model."""
        plays = any(role.version is not None for role in (self.roles or {}).values())
        return (0,) if plays or self.task.turns.role_tokens else ()

    def _check_roles(self) -> None:
        if self.frozen_versions and self.control.mixes_versions:
            raise ConfigError(
                "a frozen version plays a role, and under this schedule all that generates goes on under "
                "each new version",
                hint="set control.schedule=dora, or play the role behind an endpoint: roles.NAME.url",
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
