"""Faults: instances that die, hang or run slowly, and trainers that lose a step."""

from math import log

from dora_rl.core import inputs as told
from dora_rl.sim.chance import uniform
from dora_rl.sim.simulated_engine import SimulatedEngine
from dora_rl.sim.world import World

_DEATH, _HANG, _SLOW, _TRAINER = range(100, 104)


class FaultInjector:
    """Schedules deaths, hangs and lost steps in a simulated world, drawn by the seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._faults = world.recipe.simulation.faults
        self._count = 0
        self.deaths = 0

    def arm(self) -> None:
        """Schedule the first faults, and further ones as they happen."""
        self._world.on_revival = self._arm
        for engine in list(self._world.engines.values()):
            if uniform(self._seed, _SLOW, engine.id) < self._faults.slow_share:
                engine.slow_down(2.0)
            self._arm(engine)
        if self._faults.trainer_losses_per_hour:
            self._arm_trainer()

    def _arm(self, engine: SimulatedEngine) -> None:
        rate = self._faults.instance_deaths_per_hour / 3600.0
        if rate > 0:
            self._count += 1
            wait = -log(uniform(self._seed, _DEATH, self._count)) / rate
            self._world.after(wait, self._die, engine)

    def _die(self, engine: SimulatedEngine) -> None:
        world = self._world
        if world.engines.get(engine.id) is not engine:
            return
        self.deaths += 1
        if uniform(self._seed, _HANG, self.deaths) < self._faults.hang_share:
            engine.is_paused, engine.is_responsive = True, False
            engine.epoch += 1
            return
        world.kill(engine.id)
        world.tell(told.InstanceLost(at=world.now, instance=engine.id, reason="simulated death"))
        world.after(self._faults.restart_s, self._revive, engine)

    def _revive(self, engine: SimulatedEngine) -> None:
        self._world.revive(engine)

    def _arm_trainer(self) -> None:
        self._count += 1
        an_hour = self._faults.trainer_losses_per_hour
        wait = -3600.0 * log(uniform(self._seed, _TRAINER, self._count)) / an_hour
        self._world.after(wait, self._lose_step)

    def _lose_step(self, _: None) -> None:
        self._world.lose_step()
        self._arm_trainer()
