"""A live request outside an engine: as tensors in one process, as bytes between processes.

Bytes are a safetensors file: tensor `kv` `[layers, 2, tokens, kv heads, head size]` in the serving dtype,
absent where no token is computed, and the header below as JSON under the metadata key `dora_rl.request`.
Opening it runs no code. The header holds all that decides the next draw: the random stream is keyed by the
position of the token, so there is no state of a generator to carry.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dora_rl.core.record import Record
from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.native.scheduling.turns import Priority
from dora_rl.engines.requests import DrawnTokens, Request

FORMAT = 1
HEADER_KEY = "dora_rl.request"


class Header(Record, frozen=True):
    """A request on its way between engines, without its KV."""

    request: Request
    tokens: tuple[int, ...]
    """All token ids: prompt, continued, drawn, from the environment."""
    turn_start: int
    max_tokens: int
    logprobs: tuple[float, ...]
    """Logprobs of the tokens drawn in this turn."""
    cut_logprobs: tuple[float, ...]
    num_computed: int
    """Number of tokens whose KV comes along."""
    is_held: bool
    experts: tuple[bytes, ...] = ()
    """The experts behind each draw of this turn, where they are recorded."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise RequestError(f"exported request of format {self.format}; this engine reads {FORMAT}")
        if not 0 <= self.num_computed < len(self.tokens):
            raise RequestError(f"KV of {self.num_computed} tokens does not fit {len(self.tokens)} tokens")
        num_drawn = len(self.tokens) - self.turn_start
        if len(self.logprobs) != num_drawn or len(self.cut_logprobs) not in (0, num_drawn):
            raise RequestError(f"{len(self.logprobs)} log-probabilities of {num_drawn} drawn tokens")
        if len(self.experts) not in (0, num_drawn):
            raise RequestError(f"experts of {len(self.experts)} of {num_drawn} drawn tokens")
        if not self.is_held and len(self.tokens) >= self.max_tokens:
            raise RequestError(f"the turn is over: {len(self.tokens)} of {self.max_tokens} tokens are there")

    @property
    def drawn(self) -> DrawnTokens:
        """The tokens drawn in this turn."""
        return DrawnTokens(
            request=self.request.id,
            version=self.request.version,
            tokens=self.tokens[self.turn_start :],
            logprobs=self.logprobs,
            cut_logprobs=self.cut_logprobs,
            experts=self.experts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A request that left one engine and has not entered another."""

    header: Header
    kv: Tensor | None

    def to_bytes(self) -> bytes:
        """The request as bytes for another process."""
        tensors = {} if self.kv is None else {"kv": self.kv.contiguous()}
        return save(tensors, {HEADER_KEY: msgspec.json.encode(self.header).decode()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Exported":
        """Read what `to_bytes` wrote, and check it."""
        try:
            header = msgspec.json.decode(_metadata(data)[HEADER_KEY], type=Header)
            kv = load(data).get("kv")
        except (SafetensorError, msgspec.DecodeError, KeyError, ValueError) as error:
            raise RequestError(f"these bytes are no exported request: {error}") from error
        return cls(header=header, kv=kv)


def header_of(sequence: Sequence) -> Header:
    """The header of a sequence whose draws are all known."""
    assert sequence.num_drawing == 0, f"{sequence.num_drawing} tokens are being drawn"
    return Header(
        request=sequence.request,
        tokens=tuple(sequence.tokens),
        turn_start=sequence.turn_start,
        max_tokens=sequence.max_tokens,
        logprobs=tuple(sequence.logprobs),
        cut_logprobs=tuple(sequence.cut_logprobs),
        experts=tuple(sequence.experts),
        num_computed=sequence.num_computed,
        is_held=sequence.is_held,
    )


def sequence_of(header: Header, *, priority: Priority, serial: int, ticket: int | None) -> Sequence:
    """The sequence of a header, its KV parked under the ticket."""
    return Sequence(
        request=header.request,
        priority=priority,
        serial=serial,
        tokens=list(header.tokens),
        max_tokens=header.max_tokens,
        turn_start=header.turn_start,
        logprobs=list(header.logprobs),
        cut_logprobs=list(header.cut_logprobs),
        experts=list(header.experts),
        num_computed=0 if ticket is None else header.num_computed,
        ticket=ticket,
        is_held=header.is_held,
    )


def write_exported(exported: Exported, path: Path) -> int:
    """Write a request to a file; returns its bytes, 0 without room: then its KV is computed again."""
    content = exported.to_bytes()
    try:
        path.write_bytes(content)
    except OSError:
        path.unlink(missing_ok=True)
        return 0
    return len(content)


def read_exported(path: Path, request_id: int) -> Exported:
    """Read what `write_exported` wrote, under a new number; a RequestError where it cannot be read."""
    try:
        exported = Exported.from_bytes(path.read_bytes())
    except OSError as error:
        raise RequestError(f"the exported request cannot be read: {error}") from error
    request = msgspec.structs.replace(exported.header.request, id=request_id)
    return Exported(header=msgspec.structs.replace(exported.header, request=request), kv=exported.kv)


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: a length in 8 bytes, then a JSON object."""
    size = int.from_bytes(data[:8], "little")
    content = msgspec.json.decode(data[8 : 8 + size])
    metadata: dict[str, str] = content["__metadata__"]
    return metadata
