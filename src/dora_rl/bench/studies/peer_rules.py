"""The rules that study `peers` compares: each a few keys of `control` on the same control plane."""

from dora_rl.core.record import Record
from dora_rl.observe.tables import Cell


class PeerRule(Record, frozen=True, gc=True):
    """One rule: what it is called, whose it is, and the keys of `control` that make it."""

    name: str
    source: str
    control: dict[str, Cell]
    has_target: bool = True
    """Whether R is free; otherwise the rule fixes it."""
    finds_target: bool = False
    """Whether a controller can find R."""
    redundant_share: float = 0.0
    """Redundant groups, as a share of B."""
    redundant_members: float = 0.0
    """Members that start beyond the G that are trained on, as a share of G."""


RULES = (
    PeerRule(name="sync", source="", control={"schedule": "sync"}, has_target=False),
    PeerRule(
        name="sync, tail batching",
        source="RollPacker",
        control={"schedule": "sync"},
        has_target=False,
        redundant_share=1 / 4,
    ),
    PeerRule(name="one step off", source="", control={"schedule": "one_step_off"}, has_target=False),
    PeerRule(name="partial rollout", source="Kimi k1.5", control={"schedule": "partial"}),
    PeerRule(name="counted admission", source="AReaL", control={"schedule": "counted"}),
    PeerRule(name="async ratio", source="ROLL Flash, pinned", control={"schedule": "async_ratio"}),
    PeerRule(
        name="async ratio, suspending",
        source="ROLL Flash",
        control={"schedule": "async_ratio", "suspend": True},
    ),
    PeerRule(
        name="async ratio, B / 8 redundant",
        source="ROLL Flash, pinned",
        control={"schedule": "async_ratio"},
        redundant_share=1 / 8,
    ),
    PeerRule(
        name="async ratio, G / 8 redundant members",
        source="ROLL Flash, pinned",
        control={"schedule": "async_ratio"},
        redundant_members=1 / 8,
    ),
    PeerRule(name="admission at onset", source="DORA as published", control={"schedule": "dora_onset"}),
    PeerRule(
        name="dora, no repacking",
        source="without Laminar's idea",
        control={"schedule": "dora", "rebalance": False},
        finds_target=True,
    ),
    PeerRule(
        name="dora, long first",
        source="StreamRL's, RhymeRL's idea",
        control={"schedule": "dora", "long_first": True},
        finds_target=True,
    ),
    PeerRule(name="dora", source="this project", control={"schedule": "dora"}, finds_target=True),
)
