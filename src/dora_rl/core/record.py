"""The base of every record that crosses a boundary.

Records are frozen, keyword-only and check themselves; unknown fields are errors. They hold plain
data only (numbers, strings, tuples, other records), so they are left out of garbage collection: a
run with a million live trajectories would otherwise spend its time walking them.
"""

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The base of all plain, immutable data that crosses a boundary."""


PlainValue = str | int | float | bool | None
"""A value that any table, file or tracker can show."""
