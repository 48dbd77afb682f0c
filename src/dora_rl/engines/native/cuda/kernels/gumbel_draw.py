"""Draws: the largest of logit / temperature plus keyed Gumbel noise, and its log-probability.

Written as a race: `logit + noise` is largest where `exp(logit) / waiting time` is, and the exponential is
needed for the log-probability anyway.

The vocabulary is cut into pieces that many programs look at at once; a second kernel puts a row's pieces
together. Noise is Philox4x32-10 on the same words as on the CPU: token `i` has word `i % 4` of block `i //
4`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.streams import KEY_STEPS, MULTIPLIERS, NUM_ROUNDS

_PIECE = 4096
_M0, _M1 = (tl.constexpr(word) for word in MULTIPLIERS)
_K0, _K1 = (tl.constexpr(word) for word in KEY_STEPS)
_ROUNDS = tl.constexpr(NUM_ROUNDS)


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """Four random words for each counter; everything uint32."""
    for _ in tl.static_range(_ROUNDS):
        high0, low0 = tl.umulhi(c0, _M0), c0 * _M0
        high1, low1 = tl.umulhi(c2, _M1), c2 * _M1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _K0, k1 + _K1
    return c0, c1, c2, c3


@triton.jit
def _waiting_time(word):
    """A standard exponential `-log1p(-u)`: minus its logarithm is the Gumbel noise of the same word."""
    uniform = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    # Where 1 - u would be rounded, the series: the shortest waiting time decides, and it is short.
    series = uniform * (
        1.0 + uniform * (0.5 + uniform * (1.0 / 3 + uniform * (0.25 + uniform * (0.2 + uniform / 6))))
    )
    return tl.where(uniform < 0.0625, series, -tl.log(1.0 - uniform))


@triton.jit
def _quarters(values, NUM_BLOCKS: tl.constexpr):
    """Split `[4 n]` into its columns modulo 4."""
    even, odd = tl.split(tl.reshape(values, [NUM_BLOCKS, 2, 2]))
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def _better(score, token, other_score, other_token):
    """The candidate of the higher score; among equals that of the lower token."""
    is_other = (other_score > score) | ((other_score == score) & (other_token < token))
    return tl.where(is_other, other_score, score), tl.where(is_other, other_token, token)


@triton.jit
def _look(
    logits,
    slots,
    positions,
    temperatures,
    greedy,
    streams,
    peaks,
    masses,
    scores,
    tokens,
    vocab_size,
    num_pieces,
    PIECE: tl.constexpr,
):
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    blocks = piece * (PIECE // 4) + tl.arange(0, PIECE // 4)
    ids = piece * PIECE + tl.arange(0, PIECE)
    values = (
        tl.load(logits + row * vocab_size + ids, mask=ids < vocab_size, other=float("-inf")) / temperature
    )
    peak = tl.max(values, axis=0)
    shares = tl.exp(values - peak)
    mass = tl.sum(shares, axis=0)
    if tl.load(greedy + slot) == 0:
        v0, v1, v2, v3 = _quarters(shares, PIECE // 4)
        stream = streams + slot * 4
        counter = blocks.to(tl.uint32)
        zero = counter * 0
        w0, w1, w2, w3 = _philox(
            counter,
            zero + tl.load(positions + row).to(tl.uint32),
            zero + tl.load(stream + 2).to(tl.uint32),
            zero + tl.load(stream + 3).to(tl.uint32),
            tl.load(stream).to(tl.uint32),
            tl.load(stream + 1).to(tl.uint32),
        )
        v0, v1 = v0 / _waiting_time(w0), v1 / _waiting_time(w1)
        v2, v3 = v2 / _waiting_time(w2), v3 / _waiting_time(w3)
    else:
        v0, v1, v2, v3 = _quarters(values, PIECE // 4)
    first = blocks * 4
    low, low_token = _better(v0, first, v1, first + 1)
    high, high_token = _better(v2, first + 2, v3, first + 3)
    score, token = _better(low, low_token, high, high_token)
    best = tl.max(score, axis=0)
    token = tl.min(tl.where(score == best, token, 2147483647), axis=0)
    if tl.load(greedy + slot) == 0:
        best = tl.log(best) + peak
    place = row * num_pieces + piece
    tl.store(peaks + place, peak)
    tl.store(masses + place, mass)
    tl.store(scores + place, best)
    tl.store(tokens + place, token)


@triton.jit
def _decide(
    logits,
    slots,
    temperatures,
    peaks,
    masses,
    scores,
    tokens,
    drawn,
    out_tokens,
    out_logprobs,
    vocab_size,
    num_pieces,
    PIECES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pieces = tl.arange(0, PIECES)
    inside = pieces < num_pieces
    at = row * num_pieces + pieces
    peak = tl.load(peaks + at, mask=inside, other=float("-inf"))
    mass = tl.load(masses + at, mask=inside, other=0.0)
    score = tl.load(scores + at, mask=inside, other=float("-inf"))
    token = tl.load(tokens + at, mask=inside, other=2147483647)
    highest = tl.max(peak, axis=0)
    log_mass = highest + tl.log(tl.sum(mass * tl.exp(peak - highest), axis=0))
    chosen = tl.min(tl.where(score == tl.max(score, axis=0), token, 2147483647), axis=0)
    # A row of NaN has no best token: any token will do, its log-probability says NaN.
    chosen = tl.minimum(chosen, vocab_size - 1)
    slot = tl.load(slots + row)
    logit = tl.load(logits + row * vocab_size + chosen)
    tl.store(drawn + slot, chosen)
    tl.store(out_tokens + row, chosen)
    tl.store(out_logprobs + row, logit / tl.load(temperatures + slot) - log_mass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Buffers for the result of each piece of the vocabulary, for each row."""

    peaks: Tensor
    masses: Tensor
    scores: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, num_rows: int, vocab_size: int, device: torch.device | str) -> "Pieces":
        """Buffers for this many rows."""
        size = (num_rows, triton.cdiv(vocab_size, _PIECE))
        floats = [torch.empty(size, device=device) for _ in range(3)]
        return cls(
            peaks=floats[0],
            masses=floats[1],
            scores=floats[2],
            tokens=torch.empty(size, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributions:
    """The temperature, random stream and last token of every slot, on the device."""

    temperature_S: Tensor
    is_greedy_S: Tensor
    """Whether each slot draws the likeliest token, int32."""
    streams_S4: Tensor
    """Words of each slot's random stream, as int64."""
    drawn_S: Tensor
    """The token drawn last in each slot, int32."""


def draw(
    logits_RV: Tensor,
    slots_R: Tensor,
    positions_R: Tensor,
    distributions: Distributions,
    pieces: Pieces,
    tokens_R: Tensor,
    logprobs_R: Tensor,
) -> None:
    """Draw the token of each row that goes to its position; the slot remembers it."""
    num_rows, vocab_size = logits_RV.shape
    num_pieces = pieces.peaks.shape[1]
    _look[(num_rows, num_pieces)](
        logits_RV,
        slots_R,
        positions_R,
        distributions.temperature_S,
        distributions.is_greedy_S,
        distributions.streams_S4,
        pieces.peaks,
        pieces.masses,
        pieces.scores,
        pieces.tokens,
        vocab_size,
        num_pieces,
        PIECE=_PIECE,
        num_warps=8,
    )
    _decide[(num_rows,)](
        logits_RV,
        slots_R,
        distributions.temperature_S,
        pieces.peaks,
        pieces.masses,
        pieces.scores,
        pieces.tokens,
        distributions.drawn_S,
        tokens_R,
        logprobs_R,
        vocab_size,
        num_pieces,
        PIECES=triton.next_power_of_2(num_pieces),
        num_warps=1,
    )
