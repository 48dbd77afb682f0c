"""Messages of the trainer become control's inputs and effects.

Knows what each message means for others; when the trainer is started or sent something is its process's
business.
"""

from dora_rl.core import inputs as told
from dora_rl.run import messages as say
from dora_rl.run.evaluations import EvaluationTracker
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.received import CoverBatches, Received, RecordStep, ServeStore
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.trainer_process import TrainerProcess
from dora_rl.run.worker_deaths import WorkerDeaths


class TrainerInbox:
    """Reads what the trainer says, and has it started again when it is gone."""

    def __init__(
        self,
        setup: RunSetup,
        trainer: TrainerProcess,
        evaluations: EvaluationTracker,
        metrics: MetricsWriter,
        deaths: WorkerDeaths,
    ) -> None:
        self._setup = setup
        self._trainer = trainer
        self._evaluations = evaluations
        self._metrics = metrics
        self._deaths = deaths

    def read(self, at: float) -> Received:
        """Everything the trainer said since the last turn, as inputs and effects."""
        received = Received()
        for message in self._trainer.messages():
            match message:
                case say.TrainerReady():
                    received.effects.append(ServeStore())
                case say.StepTrained():
                    if self._setup.devices.is_elastic:
                        received.inputs.append(told.Trained(at=at))
                case say.StepReplayed():
                    different = message.num_different or 0
                    received.inputs.append(told.Replayed(at=at, batch=message.batch, num_different=different))
                case say.StepPublished():
                    received += self._published(message, at)
                case say.CheckpointWritten():
                    received.effects.append(CoverBatches(version=message.version))
        self._trainer.restart_if_gone()
        return received

    def _published(self, message: say.StepPublished, at: float) -> Received:
        setup, version = self._setup, message.batch + 1
        self._metrics.published(message, at)
        self._deaths.forgive()
        is_due = version == setup.recipe.steps or version % setup.recipe.checkpoints.every == 0
        return Received(
            inputs=[
                told.Published(at=at, version=version, train_s=message.train_s),
                *self._evaluations.due(version, at),
            ],
            effects=[RecordStep(is_checkpoint_due=is_due)],
        )
