"""What training costs: arithmetic that spreads over the devices, and a fixed part for each update."""

from dora_rl.core.recipe import Batch, Costs, Recipe
from dora_rl.core.record import Record
from dora_rl.costs.hardware import GpuModel, find_gpu
from dora_rl.costs.model_shapes import ModelShape, find_shape


class TrainCost(Record, frozen=True):
    gpu: GpuModel
    shape: ModelShape
    costs: Costs
    batch: Batch

    def compute_s(self, tokens: float, gpus: int) -> float:
        """Seconds of forward and backward passes over `tokens`."""
        flops = 6.0 * self.shape.active_parameters * tokens
        return flops / (gpus * self.gpu.flops * self.costs.train_efficiency)

    @property
    def fixed_s(self) -> float:
        """Seconds of a step that more devices do not shorten."""
        return self.batch.updates * self.costs.update_s

    def step_s(self, tokens: float, gpus: int) -> float:
        return self.compute_s(tokens, gpus) + self.fixed_s

    def publish_s(self, gpus: int) -> float:
        """Seconds for which a publish holds the trainer up."""
        delta = self.costs.delta_share * self.shape.weight_bytes
        return self.costs.publish_s + delta / (gpus * 0.8 * self.gpu.cluster_link)

    @property
    def state_bytes(self) -> float:
        """Bytes of the trainer's state: bf16 weights and gradients, float32 masters and two moments."""
        return 16.0 * self.shape.parameters


def train_cost(recipe: Recipe) -> TrainCost:
    return TrainCost(
        gpu=find_gpu(recipe.cluster.gpu),
        shape=find_shape(recipe.model),
        costs=recipe.simulation.costs,
        batch=recipe.batch,
    )
