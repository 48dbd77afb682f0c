"""Moving a live request against computing its KV again.

A request leaves an engine and enters it again, as it would enter another one like it. Both ways count until
one more token is known.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from dora_rl.bench.device import synchronised_s
from dora_rl.bench.engine.engine_bench import EngineBench
from dora_rl.bench.engine.workloads import RequestWorkload, requests_of, run_s
from dora_rl.bench.figures import Cell, Figures, Say
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.transfer import Exported
from dora_rl.engines.requests import Request, Stopping

_TOKENS = {"cuda": (4096, 32768), "cpu": (512, 2048)}
_COLUMNS = (
    "tokens",
    "KV MiB",
    "in process s",
    "as bytes s",
    "prefill s",
    "bytes / prefill",
)

CarryRequest = Callable[[Exported], Exported]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSteps:
    """On which device a request's prompt is computed, and in how many steps."""

    device: str
    num_steps: int


def migrate(setup: EngineBench, say: Say) -> Figures:
    """Measure the seconds to move a request and to compute its KV again, by length of context."""
    rows = []
    for num_tokens in _TOKENS[setup.device]:
        workload = RequestWorkload(name="one", lengths=(2,), prompt_tokens=num_tokens)
        engine = setup.engine([workload], num_host_blocks=num_tokens // 32 + 8)
        (request,) = requests_of(workload, vocab_size=setup.model.vocab_size)
        prefill = PrefillSteps(device=setup.device, num_steps=-(-num_tokens // setup.step_tokens))
        rows.append(_row(engine, request, prefill))
        say(f"migrate: {num_tokens} tokens in {rows[-1][2]} s, as bytes in {rows[-1][3]} s")
        del engine
    return Figures(title="moving a request, until its next token", columns=_COLUMNS, rows=tuple(rows))


def _row(engine: NativeEngine, request: Request, prefill: PrefillSteps) -> tuple[Cell, ...]:
    once = replace(request, stopping=Stopping(max_new_tokens=1, is_length_prescribed=True))
    # Once for nothing: the first of a kind pays for compilation.
    run_s(engine, [once])
    again_s = run_s(engine, [once])
    kv_bytes, in_process_s = _move(engine, request, prefill, lambda exported: exported)
    _, as_bytes_s = _move(engine, request, prefill, lambda exported: Exported.from_bytes(exported.to_bytes()))
    seconds = (round(each, 4) for each in (in_process_s, as_bytes_s, again_s))
    return len(request.prompt), round(kv_bytes / 2**20, 1), *seconds, round(as_bytes_s / again_s, 3)


def _move(
    engine: NativeEngine, request: Request, prefill: PrefillSteps, carry: CarryRequest
) -> tuple[int, float]:
    """The figures of moving a request a second time: the first pays for pinned memory and captures."""
    _move_once(engine, request, prefill, carry)
    return _move_once(engine, request, prefill, carry)


def _move_once(
    engine: NativeEngine, request: Request, prefill: PrefillSteps, carry: CarryRequest
) -> tuple[int, float]:
    """Bytes of KV moved, and seconds from the decision to the next token, for one move."""
    engine.submit(request)
    for _ in range(prefill.num_steps):
        engine.step()
    # The steps were launched, not awaited: what is left of the prefill is no part of the move.
    begin = synchronised_s(prefill.device)
    exported = carry(engine.export_request(request.id))
    engine.import_request(exported)
    (ended,) = engine.run()
    took_s = time.perf_counter() - begin
    assert exported.header.num_computed == len(request.prompt), f"{exported.header.num_computed} tokens moved"
    assert ended.id == request.id
    return 0 if exported.kv is None else exported.kv.nbytes, took_s
