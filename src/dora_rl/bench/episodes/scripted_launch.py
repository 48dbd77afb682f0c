"""A launch of real processes, but for those that would compute: these only keep to their part."""

from typing import Any

from msgspec.structs import replace

from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Handle, WorkerSpec

_SCRIPTED = {
    "dora_rl.run.workers.instance_worker": "dora_rl.bench.episodes.scripted_instance",
    "dora_rl.run.workers.trainer_main": "dora_rl.bench.episodes.scripted_trainer",
}
"""What is started in the place of a worker, by its module."""


class ScriptedLaunch:
    """Starts local workers; in the place of instances and the trainer their scripted stand-ins."""

    def start(self, worker: WorkerSpec, replies: Any) -> Handle:
        """Start a local worker, or its stand-in."""
        return LOCAL.start(replace(worker, module=_SCRIPTED.get(worker.module, worker.module)), replies)
