"""What a rank of the distributed tests runs. A module of its own, because processes are spawned.

python ranks.py RANK SIZE DIRECTORY
"""

import json
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.model.hub_config import from_published
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.checkpoint import load_checkpoint, save_checkpoint
from dora_rl.trainer.export import export
from dora_rl.trainer.ranks import Together
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trainer_factory import trainer_of


def main(rank: int, size: int, directory: Path) -> None:
    torch.set_num_threads(1)
    work = json.loads((directory / "work.json").read_text())
    config = msgspec.convert(work["config"], TrainerConfig)
    batches = msgspec.convert(work["batches"], list[TrainBatch])
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=size)
    model = from_published(work["model"])
    trainer = trainer_of(seeded_decoder(model, seed=0), config, ranks=Together())
    metrics = [trainer.train(batch) for batch in batches[:1]]
    save_checkpoint(trainer, directory / "step_1")
    dist.barrier()
    # The rest is trained by another trainer, which knows only the checkpoint.
    resumed = trainer_of(seeded_decoder(model, seed=0), config, ranks=Together())
    load_checkpoint(resumed, directory / "step_1")
    metrics += [resumed.train(batch) for batch in batches[1:]]
    tensors = resumed.served_tensors()
    export(resumed, directory / "exported")
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "served")
    (directory / f"metrics_{rank}.json").write_text(json.dumps(metrics))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
