"""Bytes and times of versions as deltas, against the same versions written and loaded whole, in one run.

Both ways end in durable files on one disk and in weights in place on one device. The trainer's side is timed
from weights on the device to the flushed file, the instance's from the file to weights on the device. Files
are read back soon after they are written: from the system's cache, on both ways.

The steps are real: float32 masters under AdamW, forward and backward passes in the serving dtype, a
language-model loss on random tokens. Weights begin as a fresh model's, with the deviation 0.02, which is
about that of a trained one: the size of a step against the spacing of the values decides how many change.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import torch
from torch import nn

from dora_rl.bench.device import synchronised_s
from dora_rl.core.errors import DoraError
from dora_rl.core.record import Record
from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import DefaultRope, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.random_models import QWEN3_06B, random_weights
from dora_rl.weights.atomic_files import Files
from dora_rl.weights.bits import patterns
from dora_rl.weights.chain import AnchorPolicy
from dora_rl.weights.difference import encode_all
from dora_rl.weights.shelf import Shelf
from dora_rl.weights.store import Store
from dora_rl.weights.strips import Tensors, strips_in
from dora_rl.weights.version_writer import write_anchor

LEARNING_RATES = (1e-6, 1e-5)
STEPS = 20
_WHOLE_EVERY = 10
"""Every how many versions one is also written and loaded whole, which takes the longest."""
_NEVER = AnchorPolicy(every=10**9, chain_share=1e9)


SMALL = ModelConfig(
    family="qwen3",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_layers=6,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    max_positions=512,
    norm_eps=1e-6,
    rope=DefaultRope(theta=10_000.0),
    is_tied=True,
)
"""A model of 5.8 million values, of which a step takes a fraction of a second on one core."""


class AdvancingModel:
    """A model that an optimizer step takes one version further."""

    def __init__(
        self, config: ModelConfig, *, device: str, learning_rate: float, tokens: tuple[int, int]
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._chance = torch.Generator(device).manual_seed(0)
        self._masters = {
            name: tensor.requires_grad_()
            for name, tensor in random_weights(config, seed=0, device=device, dtype=torch.float32).items()
        }
        self._decoder = Decoder.empty(config, device=device, dtype=torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._masters.values(), lr=learning_rate, weight_decay=0.0)
        self._cast()

    @property
    def version(self) -> Tensors:
        """The weights as they are served; the next step overwrites them."""
        return {name: parameter.detach() for name, parameter in self._decoder.named_parameters()}

    def step(self) -> None:
        """Make one optimizer update on a batch of random sequences."""
        sequences, length = self._tokens
        device = next(self._decoder.parameters()).device
        drawn = torch.randint(
            self._config.vocab_size, (sequences, length + 1), generator=self._chance, device=device
        )
        positions_T = torch.arange(length, device=device).repeat(sequences)
        attention = PackedAttention([length] * sequences)
        hidden_TH = self._decoder(drawn[:, :-1].flatten(), positions_T, attention)
        loss = -self._decoder.logprobs(hidden_TH, drawn[:, 1:].flatten()).logprobs_T.mean()
        loss.backward()
        for name, parameter in self._decoder.named_parameters():
            assert parameter.grad is not None, name
            self._masters[name].grad = parameter.grad.float()
            parameter.grad = None
        nn.utils.clip_grad_norm_(self._masters.values(), 1.0)
        self._optimizer.step()
        self._cast()

    @torch.no_grad()
    def _cast(self) -> None:
        for name, parameter in self._decoder.named_parameters():
            parameter.copy_(self._masters[name])


class DeltaFigures(Record, frozen=True):
    """The figures at one learning rate; times are medians over the steps."""

    learning_rate: float
    weights_bytes: int
    changed_mean: float
    """Share of the values that a step changes."""
    changed_last: float
    delta_mean: float
    """Bytes of a delta as a share of the weights' bytes."""
    delta_last: float
    encode_s: float
    """Seconds of comparing, coding and one transfer to the host: publishing on the device."""
    publish_s: float
    write_whole_s: float
    adopt_s: float
    load_whole_s: float


def run_bench(
    device: str, directory: Path, *, steps: int = STEPS, advance: Callable[[str], None] = lambda what: None
) -> list[DeltaFigures]:
    """Measure every learning rate; `advance` is called after each step."""
    if device == "cuda" and not torch.cuda.is_available():
        raise DoraError("there is no CUDA device here", hint="--device cpu measures a small model")
    return [_measure(device, directory / str(rate), rate, steps, advance) for rate in LEARNING_RATES]


def _measure(
    device: str, directory: Path, rate: float, steps: int, advance: Callable[[str], None]
) -> DeltaFigures:
    config, tokens = (QWEN3_06B, (4, 512)) if device == "cuda" else (SMALL, (4, 32))
    training = AdvancingModel(config, device=device, learning_rate=rate, tokens=tokens)
    with Store(directory, policy=_NEVER) as store:
        course = _VersionCourse(store, directory, training)
        for step in range(1, steps + 1):
            course.step(step, is_also_whole=step % _WHOLE_EVERY == 1)
            advance(f"{rate:g}")
        return course.row(rate)


class _VersionCourse:
    """A trainer that publishes and an instance that adopts, one version after the other."""

    def __init__(self, store: Store, directory: Path, training: AdvancingModel) -> None:
        self._store, self._shelf, self._training = store, Shelf(directory), training
        self._whole = Shelf(directory / "whole")
        self._whole.directory.mkdir(parents=True)
        store.publish(0, training.version)
        self._resident = {name: tensor.clone() for name, tensor in training.version.items()}
        self._values = sum(tensor.numel() for tensor in self._resident.values())
        self._bytes = sum(tensor.nbytes for tensor in self._resident.values())
        self._times: dict[str, list[float]] = {}
        self._changed: list[float] = []
        self._delta: list[float] = []

    def step(self, version: int, *, is_also_whole: bool) -> None:
        """Train, publish and adopt one version."""
        self._training.step()
        new = self._training.version
        strips = strips_in(new)
        old = [strip.strung(self._resident) for strip in strips]
        self._timed("encode", lambda: encode_all(strips, old, new))
        self._timed("publish", lambda: self._store.publish(version, new))
        self._timed("adopt", lambda: self._adopt(version))
        assert all(torch.equal(patterns(self._resident[name]), patterns(new[name])) for name in new)
        header = self._shelf.header("delta", version)
        self._changed.append(sum(part.count for part in header.parts) / self._values)
        self._delta.append(self._shelf.path("delta", version).stat().st_size / self._bytes)
        if is_also_whole:
            self._go_whole(version, new)

    def row(self, rate: float) -> DeltaFigures:
        """The figures measured at this learning rate."""
        return DeltaFigures(
            learning_rate=rate,
            weights_bytes=self._bytes,
            changed_mean=fmean(self._changed),
            changed_last=self._changed[-1],
            delta_mean=fmean(self._delta),
            delta_last=self._delta[-1],
            encode_s=median(self._times["encode"]),
            publish_s=median(self._times["publish"]),
            write_whole_s=median(self._times["write"]),
            adopt_s=median(self._times["adopt"]),
            load_whole_s=median(self._times["load"]),
        )

    def _adopt(self, version: int) -> None:
        delta = self._store.fetch_delta(version, version - 1, self._resident)
        for name, change in delta.items():
            self._resident[name].view(-1).index_copy_(0, change.indices_N, change.values_N)

    def _go_whole(self, version: int, new: Tensors) -> None:
        path = self._whole.path("anchor", version)
        self._timed("write", lambda: write_anchor(Files(), path, version, new))
        self._timed("load", lambda: self._load(version))
        path.unlink()

    def _load(self, version: int) -> None:
        _, tensors = self._whole.read_anchor(version)
        for name, tensor in tensors.items():
            self._resident[name].copy_(tensor)

    def _timed(self, what: str, act: Callable[[], object]) -> None:
        device = next(iter(self._resident.values())).device
        began_s = synchronised_s(device)
        act()
        self._times.setdefault(what, []).append(synchronised_s(device) - began_s)
