"""Memory of a run, counted before it starts: who needs how much where, and whether there is room."""

from collections.abc import Sequence

from dora_rl.core.errors import NoRoom
from dora_rl.core.recipe import Recipe
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import EngineDemand, EngineSize
from dora_rl.model.config import ModelSizes
from dora_rl.prepare.run_plan import LedgerEntry, MemoryLimit
from dora_rl.prepare.trainer_memory import checkpoint_bytes, trainer_bytes
from dora_rl.run.run_setup import DeviceLayout, trainer_config

_GIB = 2**30
_COPY = "checkpoint put together"


class RunMemory:
    """The memory of one completed recipe on the devices it was given."""

    def __init__(
        self,
        recipe: Recipe,
        model: ModelSizes,
        devices: DeviceLayout,
        limits: Sequence[MemoryLimit],
        longest_prompt_tokens: int,
    ) -> None:
        assert recipe.response.max_new_tokens is not None, "the recipe is completed"
        self._recipe = recipe
        self._model = model
        self._devices = devices
        self._trainer = trainer_config(recipe)
        self._longest_prompt_tokens = longest_prompt_tokens
        self._max_new_tokens = recipe.response.max_new_tokens
        self._limits = {each.name: each for each in limits}
        self._host = "cpu" if "cpu" in self._limits else "host"
        self.entries: list[LedgerEntry] = []

    @property
    def pass_tokens(self) -> int:
        """The most tokens that the trainer puts through the model at once: an update holds no more."""
        batch = self._recipe.batch
        update = -(-batch.groups // batch.updates) * batch.group_size * self.sequence_tokens
        return max(self.sequence_tokens, min(self._trainer.micro_batch_tokens, update))

    @property
    def sequence_tokens(self) -> int:
        """Tokens of the longest sequence there may be: the longest prompt and a full response."""
        return self._longest_prompt_tokens + self._max_new_tokens

    def counted(self, process_bytes: int) -> EngineConfig:
        """Count everything, and size the engines for what is left; a NoRoom error where it does not fit."""
        self.add_processes(process_bytes)
        self.add_trainer()
        sized = self.add_engines()
        self.check_host()
        return sized.config

    def add_processes(self, process_bytes: int) -> None:
        """Count the memory of Python and torch themselves, in every process."""
        count = self._devices.instances + self._devices.trainer_ranks
        self._add(self._host, f"{count} processes with torch", count * process_bytes, is_estimate=True)

    def add_trainer(self) -> None:
        """Count the memory of every trainer rank on its device; a NoRoom error where one has no room."""
        ranks = self._devices.trainer_ranks
        for rank in range(ranks):
            self._add_rank(rank, "trainer" if ranks == 1 else f"trainer rank {rank}")
        # One process on CPUs writes what it has; others put it together, or copy it from the device.
        if self._host == "host" or (ranks > 1 and self._trainer.lora is None):
            size = checkpoint_bytes(self._model, self._trainer)
            self._add(self._host, f"trainer{' rank 0' if ranks > 1 else ''}: {_COPY}", size)
        if self._host == "cpu":
            self._check_trainer("cpu")

    def _add_rank(self, rank: int, name: str) -> None:
        place_name = self._devices.rank_device(rank)
        for what, size, is_estimate in trainer_bytes(
            self._model,
            self._trainer,
            pass_tokens=self.pass_tokens,
            rank=rank,
            ranks=self._devices.trainer_ranks,
        ):
            self._add(place_name, f"{name}: {what}", size, is_estimate=is_estimate)
        self._check_trainer(place_name)

    def _check_trainer(self, place_name: str) -> None:
        if self._free(place_name) < 0:
            place = self._limits[place_name]
            raise NoRoom(
                f"training {self._recipe.model} needs about {self._used(place_name) / _GIB:.1f} GiB on "
                f"{place_name}, which has {place.num_bytes / _GIB:.1f} GiB to use{place.note}"
            )

    def add_engines(self) -> EngineSize:
        """Size the engines, all alike, for the device with the least room, and count their memory."""
        homes = [self._devices.instance_home(i) for i in range(self._devices.instances)]
        free, tightest = min((self._free(home) // homes.count(home), home) for home in homes)
        demand = EngineDemand(
            model=self._model,
            recipe=self._recipe,
            device="cpu" if homes[0] == "cpu" else "cuda",
            num_instances=len(homes),
            free_bytes=free,
            longest_prompt=self._longest_prompt_tokens,
            max_new_tokens=self._max_new_tokens,
            num_threads=self._devices.instance_threads,
            free_host_bytes=self._free("host") // len(homes) if self._host == "host" else None,
            note=self._limits[tightest].note,
        )
        sized = load_kind(self._recipe.engine.kind).size(demand)
        for instance, home in enumerate(homes):
            name = f"instance {instance}"
            self._add(home, f"{name}: {sized.config.max_versions} versions", sized.versions_bytes)
            self._add(home, f"{name}: KV of {_kv_tokens(sized):,} tokens", sized.kv_bytes)
            self._add(home, f"{name}: workspace", sized.workspace_bytes)
            if sized.host_kv_bytes:
                self._add(self._host, f"{name}: KV on its way", sized.host_kv_bytes)
        return sized

    def check_host(self) -> None:
        """Refuse a run on GPUs that needs more host memory than there is."""
        if self._host == "host" and self._free("host") < 0:
            copies = sum(entry.num_bytes for entry in self.entries if entry.what.endswith(_COPY))
            place = self._limits["host"]
            raise NoRoom(
                f"the run needs about {self._used('host') / _GIB:.1f} GiB of the host's memory, "
                f"{copies / _GIB:.1f} GiB of it for checkpoints; "
                f"{place.num_bytes / _GIB:.1f} GiB are to be had{place.note}"
            )

    def figures(self) -> str:
        """The fullest device in words: `3.1 of 21.2 GiB`."""
        name, limit = max(self._limits.items(), key=lambda each: self._used(each[0]) / each[1].num_bytes)
        where = "" if len(self._limits) == 1 else f" on {name}"
        return f"{self._used(name) / _GIB:.1f} of {limit.num_bytes / _GIB:.1f} GiB{where}"

    def _add(self, place_name: str, what: str, size: int, *, is_estimate: bool = False) -> None:
        self.entries.append(LedgerEntry(place=place_name, what=what, num_bytes=size, is_estimate=is_estimate))

    def _used(self, place_name: str) -> int:
        return sum(each.num_bytes for each in self.entries if each.place == place_name)

    def _free(self, place_name: str) -> int:
        return self._limits[place_name].num_bytes - self._used(place_name)


def _kv_tokens(sized: EngineSize) -> int:
    return sized.config.limits.num_blocks * sized.config.limits.block_size
