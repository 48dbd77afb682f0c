"""Admission: what starts now, on which instance.

Requests that already have a version come first, then turns of roles and evaluations, then new groups of the
newest version, and, where the trainer would starve, of older ones. Asks the window whether a group may start,
and never starts one that the staleness bound forbids.
"""

from collections.abc import Iterable

from dora_rl.control.asides import Asides
from dora_rl.control.environments import Environments
from dora_rl.control.fleet import Instance, State
from dora_rl.control.parts import ControlParts
from dora_rl.core.decisions import Admit, Skip
from dora_rl.core.inputs import QueuedPrompt


class Admission:
    """Starts requests, evaluations and new groups on instances that have room."""

    def __init__(self, parts: ControlParts, environments: Environments, asides: Asides) -> None:
        self._p = parts
        self._environments = environments
        self._asides = asides
        self._has_started = False
        self._obstacle = "room"

    # --- filling ---

    def look_again(self) -> None:
        """Place versions anew, then start whatever has room: after a change that concerns all instances."""
        p = self._p
        p.fleet_changes.rebalance(self.waiting(), p.now)
        for version in sorted(p.dispatch.pending):
            p.dispatch.fill_version(version)
        self._asides.fill()
        self.admit()
        if p.control.refill:
            for instance in p.fleet:
                if p.window.newest not in instance.cohorts:
                    self.admit(refilled=instance)

    def fill(self, instance: Instance) -> None:
        """Start on an instance with room the requests that wait for its versions, then new groups."""
        if instance.state is not State.UP:
            return
        if self._environments.is_episodic and (tokens := self._wanted_tokens(instance)):
            self._p.fleet_changes.drop_waiting(instance, tokens, self._p.now)
        if self._p.dispatch.pending:
            self._p.dispatch.fill(instance)
        self._asides.fill()
        if self._p.window.newest in instance.cohorts:
            self.admit()
        elif self._p.control.refill:
            self.admit(refilled=instance)

    def make_room(self, version: int) -> None:
        """Start those that came back and found no room where KV of others that wait can be dropped."""
        for instance in self._p.fleet:
            if not self._p.dispatch.num_pending(version):
                return
            if instance.num_waiting and version in instance.cohorts:
                self.fill(instance)

    def _wanted_tokens(self, instance: Instance) -> int:
        """Tokens of the request that would start here next, were there room for it; 0 if there is none."""
        p = self._p
        for version in sorted(instance.cohorts):
            if queue := p.dispatch.pending.get(version):
                return queue.next.prompt_tokens + queue.next.tokens
        is_wanted = self._obstacle == "room" and p.window.newest in instance.cohorts
        return p.prompts.peek().tokens if is_wanted and p.prompts.ready else 0

    # --- groups ---

    def admit(self, *, refilled: Instance | None = None) -> None:
        """Start groups of the newest version while the target R, the bound, prompts and free slots allow.

        On a `refilled` instance: of its own older version, while the trainer would starve otherwise.
        """
        p = self._p
        version = self._starting_version() if refilled is None else refilled.newest
        while not isinstance(place := self._place_or_obstacle(version, refilled), str):
            # The next prompt is pinned to the version, and its first member starts: one atomic act.
            # The others start beside it, or wherever there is room.
            prompt = p.prompts.take()
            p.window.admit(version)
            p.schedule.gate.admitted()
            group = p.ledger.admit(prompt, version)
            if p.window.newest:  # Kernels are compiled while the first version generates.
                p.durations.started(group.id, p.now)
            p.rounds.started(group.id, prompt.tokens)
            self._has_started |= version == p.window.newest
            p.emit(Admit(group=group.id, version=version, epoch=prompt.epoch, row=prompt.row))
            for t in group.members:
                stays = t.member == 0 or not p.control.prompt_replication
                if place is not None and stays and p.dispatch.has_slot(place):
                    p.dispatch.start(t, place)
                else:
                    p.dispatch.place(t)
        if refilled is None:
            self._obstacle = place

    def _place_or_obstacle(self, version: int, refilled: Instance | None) -> Instance | str | None:
        """The instance on which the next group of this version may start now, or what keeps it from that.

        None where it is pinned now and waits for a place.
        """
        p, window = self._p, self._p.window
        if refilled is not None and not self._needs_refill(refilled, version):
            return "no need"
        if not p.prompts.ready:
            return "environments" if p.prompts else "prompts"
        active = window.num_active
        if active >= self._most_active:
            return "steps"
        if window.room(version) <= 0:
            return "window"
        if self._environments.is_episodic and p.dispatch.num_pending(version):
            # A request that comes back from its environment is larger than a new one, which would fit first.
            return "room"
        if not (p.schedule.gate.is_open and p.batches.allows(version)):
            return "schedule"
        # A batch that the idle trainer has still to take will have gone by the next publish.
        leaving = 0 if p.pace.is_training else p.schedule.leaving_groups
        is_full = active - leaving >= p.target.groups
        is_looked_at = p.target.is_due(p.now)
        if is_full and not is_looked_at:
            return "target"
        place: Instance | None
        if refilled is None:
            place = p.dispatch.place_for(version, p.prompts.peek().tokens, together=self._together)
        else:
            place = refilled if p.pace.can_finish(version, p.now) else None
        if is_looked_at:
            p.target.noted(p.now, is_binding=is_full and place is not None)
        if place is None and not p.schedule.pins_at_onset:
            return "room"
        if is_full:
            return "target"
        if p.pace.is_training and p.schedule.waits_for_publish and self._waits_for_publish():
            return "publish"
        return place

    @property
    def _most_active(self) -> int:
        """Number of groups that the rest of the run can train on."""
        return (self._p.steps - self._p.window.taken) * self._p.batch.groups

    def _waits_for_publish(self) -> bool:
        """Whether a group had better wait for the step under way and start under its version.

        Slots that stay free for the last H seconds of each interval T cost H^2 / 2T of B x G rows' time, so
        `freshness_cost` pays for H. Where nothing generates while a step trains, nothing is lost at all.
        """
        p = self._p
        if p.fleet.is_elastic:
            return not p.pace.is_overdue(p.now)
        rows_share = p.fleet.slots / (p.batch.groups * p.batch.group_size)
        near_s = p.pace.interval_s * (2.0 * p.control.freshness_cost * rows_share) ** 0.5
        left_s = p.pace.time_left_s(p.now)
        if left_s > near_s or p.pace.is_overdue(p.now):
            return False
        return left_s < p.durations.quick_s or p.pace.next_batch_is_safe(p.now)

    def version_replaced(self) -> None:
        """Another version is about to be the newest: record if this one started no group, and why."""
        if not self._has_started:
            self._p.emit(Skip(version=self._p.window.newest, reason=self._obstacle))
        self._has_started, self._obstacle = False, "room"

    def _starting_version(self) -> int:
        """The version that new groups are of: the newest, or the oldest one that lacks some of its batch."""
        p, window = self._p, self._p.window
        if not p.schedule.pins_at_onset:
            return window.newest
        onsets = range(max(0, window.oldest_allowed), max(1, window.taken))
        lacking = next((version for version in onsets if window.room(version) > 0), window.newest)
        # Nobody has it any more where a finished run is extended.
        return lacking if p.versions.are_live(lacking) else window.newest

    @property
    def _together(self) -> int:
        """Number of a group's members that need room on one and the same instance."""
        return 1 if self._p.control.prompt_replication else self._p.batch.group_size

    def _needs_refill(self, instance: Instance, version: int) -> bool:
        """Whether the trainer would starve without more groups of an instance's own older version."""
        p = self._p
        return (
            not p.schedule.pins_at_onset
            and bool(p.prompts.ready)
            and p.fleet.has_room(instance, p.prompts.peek().tokens, together=self._together)
            and p.pace.would_starve(p.now)
            and not p.fleet.is_loading(p.window.newest)
            and p.versions.are_live(version)
            and version > p.window.oldest_allowed
        )

    @property
    def lacks_prompts(self) -> bool:
        """Whether no batch can fill without another prompt: none is queued and too few groups are active."""
        return not self._p.prompts and self._p.window.num_active < self._p.batch.groups

    # --- evaluations ---

    def evaluate(self, prompts: Iterable[QueuedPrompt]) -> None:
        """Let these prompts be evaluated under the newest version; episodes once they are reset."""
        members = self._asides.evaluate(prompts)
        if self._environments.is_episodic:
            self._environments.evaluate(members)
        else:
            self._asides.queue_evaluations(members)

    def waiting(self) -> dict[int, int]:
        """Number of requests without an instance, by version: pinned, or about to be."""
        counts = self._asides.waiting()
        for version, queue in self._p.dispatch.pending.items():
            if queue:
                counts[version] = counts.get(version, 0) + len(queue)
        if missing := self._missing_groups:
            version = self._starting_version()
            counts[version] = counts.get(version, 0) + missing * self._p.batch.group_size
        return counts

    @property
    def _missing_groups(self) -> int:
        """Number of groups that may start now under an older version, which somebody has to serve."""
        p, window, version = self._p, self._p.window, self._starting_version()
        if version == window.newest or not (p.prompts.ready and p.schedule.gate.is_open):
            return 0
        most = min(p.target.groups, self._most_active) - window.num_active
        return max(0, min(most, window.room(version)))
