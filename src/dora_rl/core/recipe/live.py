"""What only a live run needs: devices, evaluation, checkpoints, patience, and what it leaves behind."""

from typing import Literal

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import did_you_mean, is_place
from dora_rl.core.recipe.generation import Sampling
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Section, Share

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of the experiment trackers that are built in."""


class Devices(Section, frozen=True):
    """The devices a live run runs on, and how they are shared out."""

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device to run on; `auto` takes GPUs where there are any."""
    instances: Positive | None = None
    """Number of rollout engines; left out, one on CPUs, else one for each GPU that generates."""
    elastic: bool | None = None
    """Let GPUs that train also generate, pausing while they train; left out, the planner chooses."""
    instance_threads: Positive | None = None
    """Threads of each instance; left out, an even share on CPUs, one beside a GPU."""
    trainer_ranks: Positive | None = None
    """Processes the trainer is split over, by FSDP2; on GPUs each takes one, from the last on. Left out, one
    on CPUs, else what the planner chooses."""
    trainer_threads: Positive | None = None
    """Threads of each rank of the trainer; left out, an even share on CPUs, one beside a GPU."""
    memory_gib: PositiveFloat | None = None
    """Memory of one device, or of the machine where devices are CPUs; left out, what is free."""


class WarmStart(Section, frozen=True):
    """A short supervised start on the rows' column `demonstration`, else `solution`; it makes version 0."""

    steps: Count = 0
    """Updates of the warm start; 0 is none."""
    update_rows: Positive = 32
    """Rows of an update of the warm start, drawn at random."""
    rate: PositiveFloat = 3e-3
    """Peak learning rate of the warm start's AdamW: it rises within a few updates and falls to a tenth."""
    beta2: Share = 0.999
    """Decay rate of the second moment of the warm start's AdamW: lower follows growing gradients faster."""


class Evaluation(Section, frozen=True):
    """Held-out rows, generated beside training and scored by the same rewards."""

    every: Count | None = None
    """Train steps between evaluations, beside those before the first step and after the last; 0 is no
    evaluation at all. Left out, only those two, where `data.held_out` or `data.held_out_share` is given."""
    max_rows: Positive | None = None
    """Number of held-out rows evaluated, the first ones; left out, all."""
    samples: Positive = 1
    """Responses to each held-out row; with several there is pass@k for k = 1, 2, 4, ... up to all of them."""
    greedy: bool | None = None
    """Take the likeliest token in evaluation; left out, where a row has one sample."""
    at_temperature: PositiveFloat | None = None
    """Temperature of evaluations that are not greedy; left out, that of training."""
    pass_function: str | None = None
    """Name of the reward function by which a sample passes; left out, the whole reward."""
    pass_reward: float = 1.0
    """Least value with which a sample passes."""

    def __post_init__(self) -> None:
        if self.greedy and self.samples > 1:
            raise ConfigError(
                f"evaluation.greedy would make all evaluation.samples = {self.samples} of a row the same",
                hint="leave evaluation.greedy out, or set evaluation.samples=1",
            )
        if self.greedy and self.at_temperature is not None:
            raise ConfigError(
                f"evaluation.greedy takes no evaluation.at_temperature = {self.at_temperature:g}",
                hint="leave one of them out",
            )

    def sampling(self, training: Sampling) -> Sampling:
        """How tokens of held-out rows are drawn, where training draws so."""
        is_greedy = self.samples == 1 and self.at_temperature is None if self.greedy is None else self.greedy
        temperature = training.temperature if self.at_temperature is None else self.at_temperature
        return replace(training, temperature=temperature) if not is_greedy else Sampling(temperature=0.0)


class Checkpoints(Section, frozen=True):
    """The trainer's state on disk; steps after the last checkpoint are trained again after a crash."""

    every: Positive = 10
    """Train steps between checkpoints; the last step has one too."""
    keep: Positive = 2
    """Number of checkpoints that stay on disk, the newest ones; a run goes on from an older one where the
    newest is damaged."""
    keep_models: Positive | None = None
    """Number of checkpoints whose model stays on disk; left out, as many as `keep`. Those beyond `keep` lose
    what training goes on from."""

    def __post_init__(self) -> None:
        if self.keep_models is not None and self.keep_models < self.keep:
            raise ConfigError(
                f"checkpoints.keep_models = {self.keep_models} is below checkpoints.keep = {self.keep}",
                hint=f"leave keep_models out, or set it to {self.keep} or more",
            )

    @property
    def num_models(self) -> int:
        """Number of checkpoints whose model stays on disk."""
        return self.keep if self.keep_models is None else self.keep_models


class Patience(Section, frozen=True):
    """How long, in seconds, anything is waited for, and how often a worker may die."""

    start_s: PositiveFloat = 300.0
    """Longest wait for a worker to be ready after its start, its model loaded."""
    load_s: PositiveFloat = 300.0
    """Longest wait for an instance to load a version."""
    step_s: PositiveFloat = 3600.0
    """Longest wait for the trainer to train, publish or write a checkpoint, for rows to be read, and for a
    warm start to move."""
    progress_s: PositiveFloat = 3600.0
    """Longest wait for a trajectory to end or a step to be published: after it the run is stuck."""
    stop_s: PositiveFloat = 30.0
    """Longest wait for a worker to end when it is told to."""
    max_deaths: Positive = 5
    """Deaths of a worker within `deaths_s`, and without a version published in between, that end the run; an
    instance is started again for ever while others work."""
    deaths_s: PositiveFloat = 600.0
    """Time in which deaths of a worker are counted together; earlier ones are forgotten."""


class RunSettings(Section, frozen=True):
    """Where a run leaves its files and who gets its metrics."""

    directory: str | None = None
    """Where the run leaves everything, a directory that does not exist; left out, runs/NAME-1, -2 and so
    on."""
    storage: Literal["auto", "local", "shared"] = "auto"
    """Whether the run directory is on a disk of this machine alone or on storage that machines share, where
    the journal is written without a log that needs one machine; `auto` goes by the kind of file system."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Who gets the metrics beside metrics.jsonl, which is always written: `tensorboard`, where it is
    installed, `wandb`, `mlflow`, `trackio`, or a tracker of your own, `file.py:function`."""
    log_completions: Count = 8
    """Number of trajectories of every step whose text goes into completions.jsonl."""

    def __post_init__(self) -> None:
        for name in self.trackers:
            if name not in TRACKERS and not is_place(name):
                raise ConfigError(
                    f"run.trackers names '{name}'", hint=did_you_mean(name, list(TRACKERS), "built in")
                )
