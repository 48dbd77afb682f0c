"""`dora doctor --model X`: who computes a model here and why, its memory, and what is refused of it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dora_rl.cli.doctor import Check
from dora_rl.core.errors import UserError

if TYPE_CHECKING:
    from dora_rl.prepare.model_facts import MemoryCount, ModelFacts

_DEVICES = {"cpu": "CPUs", "cuda": "GPUs"}


def check_model(name: str) -> list[Check]:
    """Look at one model; one that cannot be trained is a single check with the reason."""
    from dora_rl.prepare.model_facts import model_facts

    try:
        return list(_checks(model_facts(name)))
    except UserError as error:
        return [Check(name="model", state="missing", text=error.message, hint=error.hint)]


def _checks(facts: "ModelFacts") -> Iterator[Check]:
    what = f"{facts.directory}, {facts.model_type}, {facts.num_parameters:,} parameters"
    yield Check(name="model", state="ok", text=what)
    yield Check(name="trainer", state="ok", text=facts.why or "the native decoder")
    where = " and ".join(_DEVICES[device] for device in facts.devices)
    if where:
        yield Check(name="engine", state="ok", text=f"{facts.computing}, on {where}")
    else:
        yield Check(name="engine", state="missing", text=f"{facts.computing} does not serve it on any device")
    yield from map(_memory, facts.memory)
    for each in facts.refused:
        yield Check(name="refused", state="note", text=f"{each.what}: {each.reason}", hint=each.hint)


def _memory(count: "MemoryCount") -> Check:
    from dora_rl.observe.run_plan_view import in_units

    whole = in_units(count.bytes_of("trainer"))
    each = ", ".join(
        f"{entry.what.partition(': ')[2]} {in_units(entry.num_bytes)}"
        for entry in count.entries
        if entry.what.startswith("instance 0:")
    )
    room = ", ".join(f"{in_units(place.num_bytes)} on {place.name}" for place in count.places)
    text = (
        f"{count.settings or 'as it is'}: the trainer {whole}; an instance "
        f"{in_units(count.bytes_of('instance 0'))} ({each}); free {room}"
    )
    if (short := count.short_of) is None:
        return Check(name="memory", state="ok", text=text)
    hint = f"{short.name} has too little{short.note}; `dora train RECIPE --dry-run` says what would fit"
    return Check(name="memory", state="note", text=text, hint=hint)
