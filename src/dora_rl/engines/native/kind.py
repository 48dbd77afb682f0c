"""The native engine as a kind: sized by its own memory, opened on its device with what ends a response."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.engine_size import size_engine
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.protocol import EngineOpening
from dora_rl.model.hub_config import read_config
from dora_rl.model.tokenizer import open_tokenizer

_SWITCH_S = 0.0005
"""Seconds a thread that reads a version may keep the interpreter from a decode round: by default ten times
as long, after every wait for the device."""


class NativeKind:
    """The kind `native`: a decoder over a paged cache, in the instance's process. Implements EngineKind."""

    size = staticmethod(size_engine)

    def open(self, opening: EngineOpening) -> NativeEngine:
        """Open the engine on its device; no version is resident yet."""
        torch.set_num_threads(opening.num_threads)
        sys.setswitchinterval(_SWITCH_S)
        engine = NativeEngine(
            read_config(opening.model / "config.json"),
            opening.config,
            stops_of(opening.stop_tokens, opening.tokenizer),
            backend=_backend(opening.device),
            source=opening.versions,
            device=opening.device,
        )
        # To the log of the instance.
        print(f"memory on {opening.device}, before the first version:\n{engine.ledger}", flush=True)
        return engine


NATIVE = NativeKind()


def stops_of(stop_tokens: tuple[int, ...], tokenizer_file: Path | None) -> Stops:
    """What ends a turn: these tokens, and strings where there is a tokenizer to read them."""
    if tokenizer_file is None:
        return Stops(stop_tokens)
    tokenizer = open_tokenizer(tokenizer_file)

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    return Stops(stop_tokens, decode)


def _backend(device: str) -> Backend:
    if device == "cpu":
        return CPU
    from dora_rl.engines.native.cuda.cuda_backend import backend_on

    torch.cuda.set_device(device)
    return backend_on(device)
