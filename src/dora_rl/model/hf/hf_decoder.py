"""A model of transformers behind the calls of the native Decoder: packed tokens in, hidden states out.

Its parameters have the names that transformers gives them, which is how versions of it are published. The
arithmetic is transformers' own but for attention, which goes through the seam where the model allows it;
where it does not, sequences are filled up side by side behind their end, which no causal model looks at.
"""

from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dora_rl.core.errors import ModelError
from dora_rl.model.hf.attention import IMPLEMENTATION, RuledAttention, register
from dora_rl.model.hf.hf_model import HfModel, hf_config, telling
from dora_rl.model.logprobs import BLOCK_TOKENS, TokenLogprobs, token_logprobs
from dora_rl.model.packed_sequences import filled_up

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOUD = 100.0
"""Size of the logits on which a head is looked at: large enough for a cap on them to show."""


_again = partial(checkpoint, use_reentrant=False)


class SideBySide:
    """Sequences of these lengths, to be filled up side by side: for models whose attention is their own."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        lengths_N = torch.tensor(lengths)
        self.rows_NL, self.is_there_NL = filled_up(lengths_N.cumsum(0) - lengths_N, lengths_N)


class HfDecoder(nn.Module):
    """A causal language model of transformers; a drop-in for Decoder where that does not know it."""

    own: Any
    """The model as transformers made it."""
    _trunk: Any
    _tail: Any

    def __init__(self, config: HfModel, own: "PreTrainedModel") -> None:
        super().__init__()
        self.config = config
        self._is_checkpointed = False
        trunk = own.base_model
        if trunk is own:
            raise ModelError(f"the model in {config.directory} cannot be told apart from its head")
        for name, child in own.named_children():
            self.add_module(name, child)
        # Beside the modules, not among them: parameters keep the names they have in transformers.
        self.__dict__["own"] = own.eval()
        self.__dict__["_trunk"] = trunk
        self.__dict__["_tail"] = _tail_of(own)
        self.has_plain_head = _has_plain_head(own, self.logits)
        """Whether logits are the product of hidden states with the head, and nothing else."""

    @classmethod
    def load(
        cls,
        config: HfModel,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        is_filled_up: bool = False,
    ) -> Self:
        """The model in the configuration's directory; with its own attention if `is_filled_up`."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        is_seamed = config.why_whole is None and not is_filled_up
        if is_seamed:
            register()
        directory = Path(config.directory)
        with telling(directory, "load the model in"):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=hf_config(directory),
                dtype=dtype or getattr(torch, config.dtype),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **({"attn_implementation": IMPLEMENTATION} if is_seamed else {}),
            )
        own, told = loaded
        if missing := sorted(told["missing_keys"]):
            # The library would go on with random weights in their place.
            raise ModelError(
                f"{directory} lacks {missing[0]}" + (f" and {len(missing) - 1} more" * (len(missing) > 1)),
                hint="config.json and the weights do not belong together",
            )
        own.to(device)
        return cls(config, own)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return next(self.parameters()).dtype

    @property
    def is_seamed(self) -> bool:
        """Whether attention goes through the seam, so that sequences are packed."""
        return bool(self.own.config._attn_implementation == IMPLEMENTATION)

    @property
    def layers(self) -> nn.ModuleList:
        """The layers of the trunk, in order."""
        found = [each for each in self._trunk.modules() if isinstance(each, nn.ModuleList)]
        return max(found, key=len)

    @property
    def is_checkpointed(self) -> bool:
        """Whether layers are computed again in the backward pass instead of being remembered."""
        return self._is_checkpointed

    @is_checkpointed.setter
    def is_checkpointed(self, value: bool) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        for layer in self.layers:
            if value and not isinstance(layer, GradientCheckpointingLayer):
                raise ModelError(
                    f"transformers has no gradient checkpointing for type {self.config.model_type!r}",
                    hint="set trainer.gradient_checkpointing=false",
                )
            layer.__dict__["gradient_checkpointing"] = value
            layer.__dict__["_gradient_checkpointing_func"] = _again
            # Only the layer itself: below it, training would mean dropout.
            layer.training = value
        self._is_checkpointed = value

    def forward(
        self, tokens_T: Tensor, positions_T: Tensor, attention: "RuledAttention | SideBySide"
    ) -> Tensor:
        """The hidden state of each token, ready for the head."""
        if isinstance(attention, SideBySide):
            rows_NL = attention.rows_NL.to(tokens_T.device)
            hidden_NLH = self._hidden(tokens_T[rows_NL], torch.arange(rows_NL.shape[1]).to(rows_NL)[None])
            return hidden_NLH[attention.is_there_NL.to(tokens_T.device)]
        return self._hidden(tokens_T[None], positions_T[None], attending=attention)[0]

    def _hidden(self, tokens: Tensor, positions: Tensor, **seam: Any) -> Tensor:
        outputs = self._trunk(
            input_ids=tokens, position_ids=positions, use_cache=False, return_dict=True, **seam
        )
        hidden: Tensor = outputs.last_hidden_state
        return hidden

    def with_state(self, tokens_T: Tensor, first: int, state: Any) -> tuple[Tensor, Any]:
        """The hidden states of tokens from position `first` on, and the state after them.

        `state` is the model's own cache of what came before, changed in place; None at the beginning.
        """
        known = signature(self._trunk.forward).parameters
        name = "past_key_values" if "past_key_values" in known else "cache_params"
        positions = torch.arange(first, first + len(tokens_T), device=tokens_T.device)
        outputs = self._trunk(
            input_ids=tokens_T[None],
            position_ids=positions[None],
            use_cache=True,
            return_dict=True,
            **{name: state},
        )
        return outputs.last_hidden_state[0], outputs[name]

    def fuse(self) -> None:
        """Refuse to run layers through the compiler: that is written for the native decoder."""
        raise ModelError("transformers' models are not compiled here", hint="set trainer.compile=false")

    @property
    def head_VH(self) -> Tensor:
        """The matrix of the head; the whole head only where that is plain."""
        weight: Tensor = self.own.get_output_embeddings().weight
        return weight

    def logits(self, hidden_TH: Tensor) -> Tensor:
        """Logits over the vocabulary as the model makes them of hidden states, float32."""
        logits: Tensor = self._tail(inputs_embeds=hidden_TH[None], use_cache=False, return_dict=True).logits
        return logits[0].float()

    def logprobs(self, hidden_TH: Tensor, targets_T: Tensor, temperature: float = 1.0) -> TokenLogprobs:
        """The logprob of each target at its hidden state, and the entropy of that distribution."""
        if self.has_plain_head:
            return token_logprobs(hidden_TH, self.head_VH, targets_T, temperature=temperature)
        parts = zip(hidden_TH.split(BLOCK_TOKENS), targets_T.split(BLOCK_TOKENS), strict=True)
        found = [checkpoint(self._scored, *part, temperature, use_reentrant=False) for part in parts]
        return TokenLogprobs(*(torch.cat(column) for column in zip(*found, strict=True)))

    def _scored(self, hidden_BH: Tensor, targets_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scores_BV = functional.log_softmax(self.logits(hidden_BH) / temperature, dim=-1)
        entropy_B = -(scores_BV.exp() * scores_BV).sum(-1)
        return scores_BV.gather(1, targets_B[:, None]).squeeze(1), entropy_B

    def copied(self, *, dtype: torch.dtype | None = None) -> Self:
        """The same model in memory of its own, frozen."""
        other = deepcopy(self).requires_grad_(False)
        return other if dtype is None else other.to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast the weights; what is no weight is moved, and keeps its dtype.

        Rotary frequencies and the like are float32 on purpose.
        """
        kept = [(owner, name, each) for owner, name, each in _buffers(self) if each.is_floating_point()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for owner, name, before in kept:
            moved = owner._buffers[name]
            assert moved is not None, f"{name} is gone"
            owner._buffers[name] = before.to(moved.device)
        return self


def _buffers(module: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    return [
        (owner, name, each)
        for owner in module.modules()
        for name, each in owner._buffers.items()
        if each is not None
    ]


class _Given(nn.Module):
    """In place of the trunk: hidden states come out as they are."""

    def forward(self, *positional: Any, **named: Any) -> "_States":
        """The hidden states among the arguments, which are the only floats of them."""
        given = (*positional, *named.values())
        return _States(next(each for each in given if isinstance(each, Tensor) and each.is_floating_point()))


class _States:
    """The output of a trunk that nothing but hidden states came out of."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int) -> Tensor:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        return None


def _tail_of(own: "PreTrainedModel") -> "PreTrainedModel":
    """The model without its trunk: its head, and whatever it does to logits."""
    tail = copy(own)
    # In no place that a module looks for others at: neither is moved, cast or saved twice.
    tail.__dict__["_modules"] = dict(own._modules) | {own.base_model_prefix: _Given()}
    return tail


@torch.no_grad()
def _has_plain_head(own: "PreTrainedModel", logits: Callable[[Tensor], Tensor]) -> bool:
    head = own.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None or head.weight.is_meta:
        return False
    generator = torch.Generator(head.weight.device).manual_seed(0)
    hidden_TH = torch.randn(4, head.in_features, generator=generator, device=head.weight.device)
    product_TV = functional.linear(hidden_TH, head.weight.float())
    hidden_TH *= _LOUD / product_TV.abs().max().clamp(min=1e-6)
    hidden_TH = hidden_TH.to(head.weight.dtype)
    product_TV = functional.linear(hidden_TH, head.weight).float()
    return torch.allclose(logits(hidden_TH), product_TV, rtol=1e-2, atol=_LOUD * 1e-3)
