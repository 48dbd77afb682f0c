"""The processes of the instances: started, listened to, told, ended, started again.

An instance joins once its first version, the newest there was, is resident; before that control does not know
it, and what control says to one that is not there (any more) is not sent. Knows nothing of requests.
"""

import time
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.launch.protocol import Handle, Launch, Place, WorkerSpec
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import WorkerDeaths, how_it_ended

_STOPPED_S = 5.0
"""Seconds after which an instance that is stopped is given up, if its silence would not end it before."""


class InstancePhase(Enum):
    """How far the process of an instance has come; the value says what it is waited for to do."""

    STARTING = "to open its engine"
    LOADING = "to load its first version"
    JOINED = "nothing"


class InstanceProcess(Struct, kw_only=True):
    """The process of one instance, and what it last said."""

    number: int
    handle: Handle
    since: float
    """When the current phase began, in seconds of the monotonic clock."""
    heard_at: float
    phase: InstancePhase = InstancePhase.STARTING
    spec: InstanceSpec | None = None
    report: say.Report | None = None
    """The last report this instance sent; None before the first."""
    last_words: str | None = None
    stopped_at: float | None = None
    """When it was first seen stopped, on the monotonic clock; None while it is not."""

    @property
    def name(self) -> str:
        return f"instance {self.number}"

    def enter(self, phase: InstancePhase) -> None:
        self.phase, self.since = phase, time.monotonic()

    def stopped_s(self) -> float:
        """Seconds for which the process was seen stopped, the last time it was looked at included."""
        if not self.handle.is_stopped:
            self.stopped_at = None
            return 0.0
        now = time.monotonic()
        self.stopped_at = now if self.stopped_at is None else self.stopped_at
        return now - self.stopped_at


def start_instance(
    number: int, setup: RunSetup, layout: LiveLayout, stop_tokens: tuple[int, ...], launch: Launch
) -> Handle:
    """Start the process of an instance and tell it what to open."""
    devices = setup.devices
    worker = WorkerSpec(
        name=f"instance {number}",
        module="dora_rl.run.workers.instance_worker",
        log=str(layout.instance_log(number)),
        place=Place.on(devices.instance_home(number), cpus=devices.instance_threads),
    )
    handle = launch.start(worker, say.InstanceWord)
    store = str(layout.versions)
    handle.send(say.Begin(setup=setup, store=store, number=number, stop_tokens=stop_tokens))
    return handle


class LostInstance(Struct, kw_only=True):
    """An instance whose process is gone, and was started again."""

    number: int
    was_joined: bool
    reason: str


class InstancePool:
    """The processes of all instances, by number."""

    def __init__(
        self,
        setup: RunSetup,
        layout: LiveLayout,
        deaths: WorkerDeaths,
        stop_tokens: tuple[int, ...],
        *,
        launch: Launch,
    ) -> None:
        self._setup = setup
        self._stop_tokens = stop_tokens
        self._layout = layout
        self._deaths = deaths
        self._launch = launch
        self.processes: dict[int, InstanceProcess] = {}
        """The processes there are, by the instance's number."""
        self._nodes: dict[str | None, int] = {None: 0}
        """Numbers of the machines that instances are on, in the order they were first seen."""
        self._start_at: dict[int, float] = {}
        """When each instance without a process is to be started again."""
        self._removed: list[LostInstance] = []
        """Instances that were ended because fewer are wanted, until that is told."""
        for number in range(setup.devices.instances):
            self._start(number)

    def _start(self, number: int) -> None:
        self._start_at.pop(number, None)
        handle = start_instance(number, self._setup, self._layout, self._stop_tokens, self._launch)
        now = time.monotonic()
        self.processes[number] = InstanceProcess(number=number, handle=handle, since=now, heard_at=now)

    def close(self) -> None:
        """Kill every instance process that is left, without waiting."""
        for process in self.processes.values():
            process.handle.end(within_s=0.0)

    # --- talking --------------------------------------------------------------------------------

    def send(self, number: int, message: say.Message) -> None:
        """Send a command to an instance that has joined; one that has not joined is sent nothing."""
        if self.has_joined(number):
            self.processes[number].handle.send(message)

    def has_joined(self, number: int) -> bool:
        return number in self.processes and self.processes[number].phase is InstancePhase.JOINED

    def seconds(self) -> dict[int, InstanceSeconds]:
        """What each instance that has joined last said of its own seconds, by its number."""
        said = {number: self.processes[number].report for number in self.processes if self.has_joined(number)}
        return {number: report.seconds for number, report in said.items() if report is not None}

    def opened(self, process: InstanceProcess, spec: InstanceSpec) -> None:
        """Note what an instance says of itself, and what only its owner knows: which machine it is on."""
        node = self._nodes.setdefault(process.handle.node, len(self._nodes))
        # KV travels through files in the memory of this machine.
        process.spec = replace(spec, node=node, moves_kv=spec.moves_kv and not node)

    # --- deaths ---------------------------------------------------------------------------------

    def replace_lost(self) -> list[LostInstance]:
        """Give up every instance that died, is silent or took too long to start; returns which those were.

        Each is started again, after a pause where it died before, unless fewer are wanted.
        """
        removed, self._removed = self._removed, []
        for number in [number for number, at in self._start_at.items() if time.monotonic() >= at]:
            self._start(number)
        troubled = [(process, self._trouble(process)) for process in self.processes.values()]
        lost = [self._replace(process, reason) for process, reason in troubled if reason is not None]
        return [*removed, *lost]

    def resize(self, instances: int) -> None:
        """Have so many instances from now on, those of the lowest numbers; the others end at once."""
        for number in sorted({*self.processes, *self._start_at}):
            if number >= instances:
                self._start_at.pop(number, None)
                self._remove(number, f"the run was scaled to {instances} instances")
        for number in range(instances):
            if number not in self.processes and number not in self._start_at:
                self._start(number)

    def _remove(self, number: int, reason: str) -> None:
        was_joined = self.has_joined(number)
        process = self.processes.pop(number, None)
        if process is not None:
            process.handle.end(within_s=0.0)
            self._removed.append(LostInstance(number=number, was_joined=was_joined, reason=reason))

    def restart(self, number: int, reason: str) -> None:
        """Start an instance again because control gave it up."""
        self._replace(self.processes[number], reason)

    def _trouble(self, process: InstanceProcess) -> str | None:
        """Why an instance must be started again, or None.

        Silence is judged here whatever the instance does, also while its device is lent; control judges it by
        ticks, and only of those that generate. One that was stopped is given up sooner: silence may also come
        of a machine with too much to do, and so must be waited out.
        """
        if not process.handle.is_alive:
            return how_it_ended(
                process.handle.end(within_s=1.0),
                process.last_words,
                self._layout.instance_log(process.number),
            )
        now, start_s = time.monotonic(), self._setup.recipe.patience.start_s
        if not process.handle.is_placed:
            # A node with room may join later, and the instance with it: the others go on without.
            process.since = process.heard_at = now
            return None
        silence_s = self._setup.recipe.control.silence_s
        stopped_s = min(_STOPPED_S, silence_s)
        if process.stopped_s() > stopped_s:
            return f"was stopped for {stopped_s:g} s"
        if process.phase is not InstancePhase.JOINED and now - process.since > start_s:
            return f"took more than {start_s:g} s {process.phase.value}"
        return f"was silent for {silence_s:g} s" if now - process.heard_at > silence_s else None

    def _replace(self, process: InstanceProcess, reason: str) -> LostInstance:
        process.handle.end(within_s=0.0)
        del self.processes[process.number]
        others = self.processes.values()
        is_alone = not any(self.has_joined(p.number) and self._deaths.is_reliable(p.name) for p in others)
        pause_s = self._deaths.count(
            process.name, reason, self._layout.instance_log(process.number), is_needed=is_alone
        )
        self._start_at[process.number] = time.monotonic() + pause_s
        if not pause_s:
            self._start(process.number)
        return LostInstance(
            number=process.number, was_joined=process.phase is InstancePhase.JOINED, reason=reason
        )
