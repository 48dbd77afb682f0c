"""Low-rank training: two thin factors for each of some matrices, merged into them at every update.

The forward pass multiplies with `round(base + scale * B A)`, exactly what is published; rounding counts as no
change to the gradient. A merged matrix's gradient G gives those of its factors, `scale * B^T G` and
`scale * G A^T`, and is dropped at once. So engine and trainer agree bit for bit on the weights, and what is
saved is the optimizer's memory, not the arithmetic of G.

Over several ranks each holds the whole model, and the factors' gradients are added up before an update.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe.trainer_config import LoraConfig
from dora_rl.model.config import ModelSizes
from dora_rl.model.language_model import pieces_of
from dora_rl.model.parameter_layout import Piece
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.ranks import Alone, Ranks

FACTOR = ".lora_"
"""What the name of every factor contains, and of no other master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The change of one published matrix: `scale * B A`."""

    piece: Piece
    a_RI: Tensor
    b_OR: Tensor

    @property
    def module(self) -> str:
        """The published name of the layer, for example `model.layers.0.self_attn.q_proj`."""
        return self.piece.name.removesuffix(".weight")

    @property
    def names(self) -> tuple[str, str]:
        """The names of both factors among the masters."""
        return f"{self.module}.lora_A.weight", f"{self.module}.lora_B.weight"


class LoraWeights:
    """Only factors, and a critic's head where there is one, are trained; every rank has all of them."""

    is_sharded = False
    num_averaged = 1

    def __init__(
        self,
        policy: Policy,
        serving_dtype: torch.dtype,
        config: LoraConfig,
        *,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self._ranks = ranks or Alone()
        self.config = config
        self._own = [(f"value_head.{name}", own) for name, own in _value_parameters(policy)]
        self._forward = dict(policy.decoder.named_parameters())
        self.factors = list(_fresh_factors(policy, config, seed))
        changed = {each.piece.parameter for each in self.factors}
        self._bases = {name: self._forward[name].detach().clone() for name in sorted(changed)}
        policy.decoder.to(serving_dtype)
        for name, used in self._forward.items():
            used.requires_grad_(name in self._bases)
            if name in self._bases:
                used.register_post_accumulate_grad_hook(self._absorber(name))
        self.masters = dict(self._named_masters())
        self._sums: dict[str, Tensor] = {}
        self.refresh()

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the masters: every rank has all of each."""
        return {name: master.shape for name, master in self.masters.items()}

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the masters that weight decay applies to: the factors."""
        return frozenset(name for each in self.factors for name in each.names)

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the factors and of the critic's head; to be asked for once an update."""
        own = {name: used.grad for name, used in self._own if used.grad is not None}
        found = self._sums | own
        if self._ranks.size > 1 and found:
            # In the masters' order, which all ranks share, and in one message.
            names = [name for name in self.masters if name in found]
            summed = self._ranks.reduce(torch.cat([found[name].flatten() for name in names]), "sum")
            parts = summed.split([found[name].numel() for name in names])
            found = {name: part.view_as(found[name]) for name, part in zip(names, parts, strict=True)}
        return found

    def forget(self) -> None:
        """Drop all gradients."""
        self._sums = {}
        for _, used in self._own:
            used.grad = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge the factors into the matrices and round."""
        # One parameter at a time: copies of all would take as much memory as the bases.
        for name, base in self._bases.items():
            merged = base.clone()
            for each in self._factors_of(name):
                each.piece.of(merged).addmm_(each.b_OR, each.a_RI, alpha=self.config.scale)
            self._forward[name].copy_(merged)

    def served(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter of the decoder with the factors merged, in the serving dtype."""
        for name, used in self._forward.items():
            yield name, used.detach()

    def whole(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors themselves: every rank has all of each."""
        return ((name, tensor.detach()) for name, tensor in tensors.items())

    @torch.no_grad()
    def restore(self, name: str, whole: Tensor, into: Tensor) -> None:
        """Copy a whole tensor into one shaped like the master of that name."""
        into.copy_(whole)

    def _factors_of(self, parameter: str) -> list[Factors]:
        return [each for each in self.factors if each.piece.parameter == parameter]

    @torch.no_grad()
    def start_from(self, factors: Mapping[str, Tensor]) -> None:
        """Take over the factors of an adapter, by their names among the masters."""
        own = {name for each in self.factors for name in each.names}
        if different := sorted(own ^ factors.keys()):
            where = "the model" if different[0] in own else "the adapter"
            raise ModelError(f"adapter and model do not belong together: only {where} has '{different[0]}'")
        for name in own:
            if self.masters[name].shape != factors[name].shape:
                shapes = f"{list(factors[name].shape)}, not {list(self.masters[name].shape)}"
                raise ModelError(f"adapter and model do not belong together: '{name}' is {shapes}")
            self.masters[name].copy_(factors[name])
        self.refresh()

    def _named_masters(self) -> Iterator[tuple[str, Tensor]]:
        for each in self.factors:
            yield from zip(each.names, (each.a_RI, each.b_OR), strict=True)
        for name, used in self._own:
            yield name, used.detach()

    def _absorber(self, parameter: str) -> Callable[[Tensor], None]:
        """A hook that turns a merged parameter's gradient into those of its factors."""
        mine = self._factors_of(parameter)

        @torch.no_grad()
        def absorb(used: Tensor) -> None:
            grad, used.grad = used.grad, None
            assert grad is not None, "another trainer took it: a decoder belongs to one trainer"
            for each in mine:
                grad_OI = each.piece.of(grad).float() * self.config.scale
                a_name, b_name = each.names
                self._add(a_name, each.b_OR.T @ grad_OI)
                self._add(b_name, grad_OI @ each.a_RI.T)

        return absorb

    def _add(self, name: str, grad: Tensor) -> None:
        self._sums[name] = self._sums[name].add_(grad) if name in self._sums else grad


def target_pieces(model: ModelSizes, config: LoraConfig) -> list[Piece]:
    """The matrices of a model that low-rank training changes; a ConfigError where there is none."""
    matrices = [
        piece
        for piece in pieces_of(model)
        if piece.expert is None and piece.name.endswith(".weight") and len(piece.shape) == 2
    ]
    found = [piece for piece in matrices if _short_name(piece) in config.targets]
    if not found:
        own = ", ".join(sorted({_short_name(piece) for piece in matrices}))
        raise ConfigError(
            f"trainer.lora.targets ({', '.join(config.targets)}) match no matrix of this model",
            hint=f"its matrices are {own}; where none of them is a known target, leave trainer.lora out",
        )
    return found


def _short_name(piece: Piece) -> str:
    return piece.name.removesuffix(".weight").rsplit(".", 1)[-1]


def _fresh_factors(policy: Policy, config: LoraConfig, seed: int) -> Iterator[Factors]:
    """New factors, A random and B zero: at first they change nothing."""
    generator = torch.Generator().manual_seed(seed)
    device = policy.decoder.device
    for piece in target_pieces(policy.decoder.config, config):
        num_out, num_in = piece.shape
        a_RI = torch.empty(config.rank, num_in)
        nn.init.kaiming_uniform_(a_RI, a=sqrt(5), generator=generator)
        b_OR = torch.zeros(num_out, config.rank)
        yield Factors(piece=piece, a_RI=a_RI.to(device), b_OR=b_OR.to(device))


def _value_parameters(policy: Policy) -> Iterator[tuple[str, nn.Parameter]]:
    if policy.value_head is not None:
        yield from policy.value_head.named_parameters()
