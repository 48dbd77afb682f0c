"""The process that speaks to Ray: `python -m dora_rl.launch.ray_driver ADDRESS`. No other module imports it.

For each worker one placement group of one bundle, and in it one actor, the worker's agent. Nothing is started
again by Ray, and nothing outlives this process. What goes wrong with an actor is told to the worker's owner,
in the agent's place. Ray pickles the actor's class and order within the cluster; messages of ours are never
pickled, and do not go through it.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import msgspec
import ray
from msgspec import Struct
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dora_rl.core.errors import UserError
from dora_rl.launch.agent import WorkerLost, WorkerOrder, WorkerPrinted, keep_worker, tell_owner
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Stop
from dora_rl.launch.protocol import Place
from dora_rl.launch.ray_words import (
    Connect,
    Connected,
    DriverCommand,
    KeepWorker,
    ListNodes,
    Node,
    NodesListed,
    ReleaseWorker,
)

_LOOK_EVERY_S = 0.25
_TELL_AFTER_S = 10.0
"""Seconds without a place after which the worker's log says what it waits for."""
_NOTHING = {"memory": 1.0}
"""What is reserved for a worker whose cores are left to itself: a byte, for a group reserves something."""
_NODE_LABEL = "ray.io/node-id"


class Agent:
    """The actor of one worker: starts it on its node, and stays beside it."""

    def keep(self, order: bytes) -> None:
        """Return when the worker has ended."""
        keep_worker(msgspec.msgpack.decode(order, type=WorkerOrder), ray.get_runtime_context().get_node_id())


class _Kept(Struct, kw_only=True):
    """A worker whose actor was asked for."""

    order: WorkerOrder
    group: Any
    actor: Any
    done: Any
    since: float
    was_told: bool = False


class RayDriver:
    """Every worker that was asked for, until it is released."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._kept: dict[int, _Kept] = {}
        self._agent = ray.remote(max_restarts=0, max_task_retries=0)(Agent)

    def run(self) -> None:
        """Obey until told to stop."""
        while True:
            match self._channel.receive(_LOOK_EVERY_S):
                case None:
                    self._look()
                case Stop():
                    return
                case KeepWorker() as asked:
                    try:
                        self._keep(asked)
                    except ray.exceptions.RayError as error:
                        tell_owner(asked.order, WorkerLost(reason=f"was refused by Ray: {_sentence(error)}"))
                case ReleaseWorker(number=number):
                    self._release(number)
                case ListNodes():
                    self._channel.send(NodesListed(nodes=tuple(_nodes())))
                case command:
                    raise AssertionError(f"{command} is no command to the Ray driver")

    def _keep(self, asked: KeepWorker) -> None:
        place, labels = asked.place, _labels(asked.place)
        gpus = {"GPU": float(len(place.gpus))} if place.gpus else {}
        bundle = {"CPU": float(place.cpus), **gpus} if place.cpus else gpus or _NOTHING
        group = placement_group(
            [bundle], strategy="STRICT_PACK", bundle_label_selector=[labels] if labels else None
        )
        strategy = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        actor = self._agent.options(
            num_cpus=bundle.get("CPU", 0.0),
            num_gpus=bundle.get("GPU", 0.0),
            memory=bundle.get("memory"),
            scheduling_strategy=strategy,
        ).remote()
        self._kept[asked.number] = _Kept(
            order=asked.order,
            group=group,
            actor=actor,
            done=actor.keep.remote(msgspec.msgpack.encode(asked.order)),
            since=time.monotonic(),
        )

    def _release(self, number: int) -> None:
        kept = self._kept.pop(number, None)
        if kept is not None:
            ray.kill(kept.actor, no_restart=True)
            remove_placement_group(kept.group)

    def _look(self) -> None:
        """Tell owners of actors that are gone, and of those that find no place."""
        waited_for = {kept.done: kept for kept in self._kept.values() if kept.done is not None}
        if waited_for:
            done, _ = ray.wait(list(waited_for), num_returns=len(waited_for), timeout=0.0)
            for each in done:
                waited_for[each].done = None
                self._tell_how_it_ended(waited_for[each].order, each)
        now = time.monotonic()
        for kept in self._kept.values():
            if kept.done is not None and not kept.was_told and now - kept.since > _TELL_AFTER_S:
                kept.was_told = True
                self._tell_what_it_waits_for(kept)

    @staticmethod
    def _tell_how_it_ended(order: WorkerOrder, done: Any) -> None:
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            tell_owner(order, WorkerLost(reason=f"was lost with its actor: {_sentence(error)}"))

    @staticmethod
    def _tell_what_it_waits_for(kept: _Kept) -> None:
        if placement_group_table(kept.group)["state"] != "PENDING":
            return
        (bundle,) = kept.group.bundle_specs
        wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())
        free = ray.available_resources()
        left = ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in bundle)
        said = f"waits for a node with {wanted} free; in the whole cluster {left} are free\n"
        tell_owner(kept.order, WorkerPrinted(output=said.encode()))


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def _labels(place: Place) -> dict[str, str]:
    """Labels that a node must have to be the place; one without cores is none unless it was named."""
    if place.node is not None:
        return {**place.labels, _NODE_LABEL: place.node}
    idle = [node.id for node in _nodes() if not node.cpus] if not place.cpus else []
    return {**place.labels, **({_NODE_LABEL: f"!in({','.join(idle)})"} if idle else {})}


def _nodes() -> Iterator[Node]:
    for node in ray.nodes():
        resources = node["Resources"]
        kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
        if node["Alive"]:
            yield Node(
                id=node["NodeID"],
                host=node["NodeManagerAddress"],
                cpus=resources.get("CPU", 0.0),
                gpus=resources.get("GPU", 0.0),
                gpu_kind=kinds[0] if kinds else None,
                memory_bytes=resources.get("memory", 0.0),
                labels=dict(node.get("Labels", {})),
            )


def _connect(address: str) -> Connected:
    try:
        ray.init(address, namespace="dora-rl", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {_sentence(error)}",
            hint="start one (`ray start --head`), and run on one of its nodes",
        ) from error
    found = ray.get_runtime_context().get_node_id()
    return Connected(host=ray.util.get_node_ip_address(), node=found)


def main(address: str) -> None:
    """Connect to the cluster, and obey the owner until he says to stop or is gone."""
    channel = Channel.connect(address, DriverCommand)
    # What Ray says of its nodes is in its own logs, and nothing that whoever runs a command asked for.
    with (
        telling_why(channel),
        open(os.devnull, "w") as unread,
        redirect_stdout(unread),
        redirect_stderr(unread),
    ):
        first = channel.receive()
        assert isinstance(first, Connect), f"the first message says where the cluster is: {first}"
        channel.send(_connect(first.address))
        RayDriver(channel).run()
    channel.leave()


if __name__ == "__main__":
    # By its own name, so that nodes find the actor's class where it is, and it is not sent.
    from dora_rl.launch.ray_driver import main as of_module

    of_module(sys.argv[1])
