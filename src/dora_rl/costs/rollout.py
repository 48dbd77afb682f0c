"""What generating costs on one instance: decode, prefill, KV, loading weights, moving requests.

A decode step is a roofline: reading the weights (or the arithmetic, where a batch is large), plus
reading the KV. Launching kernels from the host runs beside the device's work, so it is a floor and
not a term; scheduling and sampling are added.
"""

from dora_rl.core.errors import ConfigError
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Costs, Recipe
from dora_rl.core.record import Record
from dora_rl.costs.hardware import GpuModel, find_gpu
from dora_rl.costs.model_shapes import ModelShape, find_shape

_ALLREDUCE_S = 8e-6
"""Seconds of latency of one all-reduce in a tensor-parallel instance; there are two a layer."""
_ACTIVATION_SHARE = 0.03
"""Share of device memory kept for activations and graphs."""


class RolloutCost(Record, frozen=True):
    """The costs of one instance: `gpus` devices that hold one model by tensor parallelism."""

    gpu: GpuModel
    shape: ModelShape
    costs: Costs
    gpus: int
    memory_share: float

    # --- decoding ---

    @property
    def kv_read_s(self) -> float:
        """Seconds that a decode step takes longer for each token of KV it reads."""
        return self.shape.kv_bytes / self._bandwidth

    def pass_s(self, batch: float) -> float:
        """Device seconds of one pass over the weights, without KV."""
        read = self.shape.weight_bytes_read(batch, self.costs.expert_imbalance) / self._bandwidth
        compute = 2.0 * self.shape.active_parameters * batch / self._flops
        collective = 2 * self.shape.layers * _ALLREDUCE_S if self.gpus > 1 else 0.0
        return max(read, compute) + collective

    def step_s(self, batch: float, kv_tokens: float, num_versions: int = 1) -> float:
        """Seconds of one decode step of all requests; versions of one instance decode in turn."""
        passes = num_versions * self.pass_s(batch / num_versions)
        device = passes + kv_tokens * self.kv_read_s
        return max(num_versions * self.costs.decode_floor_s, device) + self.overhead_s(num_versions)

    def floor_s(self, num_versions: int) -> float:
        return num_versions * self.costs.decode_floor_s

    def overhead_s(self, num_versions: int) -> float:
        return num_versions * self.costs.decode_overhead_s

    def prefill_s(self, tokens: float) -> float:
        return 2.0 * self.shape.active_parameters * tokens / self._flops

    # --- memory ---

    def kv_tokens(self, num_versions: int = 1) -> int:
        """Tokens of KV that fit beside `num_versions` resident versions."""
        usable = self.gpus * self.gpu.memory_bytes * (self.memory_share - _ACTIVATION_SHARE)
        return int((usable - num_versions * self.shape.weight_bytes) / self.shape.kv_bytes)

    def spec(self, recipe: Recipe, *, node: int, elastic: bool) -> InstanceSpec:
        """The spec with which such an instance joins a fleet."""
        c = recipe.cluster
        return InstanceSpec(
            slots=c.slots,
            kv_tokens=self.kv_tokens(),
            version_kv_tokens=int(self.shape.weight_bytes / self.shape.kv_bytes),
            max_versions=c.max_versions,
            host_kv_tokens=recipe.engine.host_kv_tokens or 0,
            gpus=self.gpus,
            node=node,
            elastic=elastic,
        )

    # --- moving things ---

    def load_s(self, versions_apart: int) -> float:
        """Seconds to load a version `versions_apart` deltas away; never more than the full weights."""
        share = min(1.0, max(1, versions_apart) * self.costs.delta_share)
        return 0.1 + share * self.shape.weight_bytes / (self.gpus * 0.8 * self.gpu.cluster_link)

    def kv_bytes(self, tokens: float) -> int:
        return int(tokens * self.shape.kv_bytes)

    def move_s(self, tokens: float, *, same_node: bool) -> float:
        link = self.gpu.node_link if same_node else self.gpu.cluster_link
        return 0.005 + self.kv_bytes(tokens) / (self.gpus * 0.8 * link)

    def host_s(self, tokens: float) -> float:
        """Seconds to move the KV of `tokens` to host memory, or back."""
        return self.kv_bytes(tokens) / (self.gpus * self.gpu.host_link)

    # --- inside ---

    @property
    def _bandwidth(self) -> float:
        return self.gpus * self.gpu.bandwidth * self.costs.bandwidth_efficiency

    @property
    def _flops(self) -> float:
        return self.gpus * self.gpu.flops * self.costs.compute_efficiency


def rollout_cost(recipe: Recipe, gpus: int) -> RolloutCost:
    """The cost of an instance of `gpus` devices, or an error if the model does not fit on it."""
    cost = _instance(recipe, gpus)
    if not fits(cost, recipe):
        raise ConfigError(
            f"{cost.shape.name} ({cost.shape.weight_bytes / 1e9:.0f} GB) does not fit on an instance of "
            f"{gpus} x {cost.gpu.name} with room for one longest trajectory",
            hint=f"raise cluster.tensor_parallel above {gpus}, or choose a GPU with more memory",
        )
    return cost


def fits(cost: RolloutCost, recipe: Recipe) -> bool:
    """Whether the weights and one trajectory of the greatest length fit on an instance."""
    return cost.kv_tokens() >= recipe.task.prompt_tokens + recipe.task.lengths.max_tokens


def instance_sizes(recipe: Recipe) -> list[int]:
    """Numbers of GPUs an instance may have: the recipe's, or each power of two in a node that fits."""
    c = recipe.cluster
    if c.tensor_parallel is not None:
        return [rollout_cost(recipe, c.tensor_parallel).gpus]
    most = min(c.gpus, c.gpus_per_node)
    powers = [2**i for i in range(most.bit_length())]
    sizes = [size for size in powers if fits(_instance(recipe, size), recipe)]
    if not sizes:
        rollout_cost(recipe, powers[-1])  # Not even the largest holds it: this says so.
    return sizes


def _instance(recipe: Recipe, gpus: int) -> RolloutCost:
    return RolloutCost(
        gpu=find_gpu(recipe.cluster.gpu),
        shape=find_shape(recipe.model),
        costs=recipe.simulation.costs,
        gpus=gpus,
        memory_share=recipe.cluster.memory_share,
    )
