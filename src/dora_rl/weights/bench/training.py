"""Real steps: float32 masters under AdamW, the forward and backward pass in the serving dtype.

The task is a language-model loss on random tokens. Weights begin as a fresh model's, normally distributed
with the deviation 0.02, which is about that of a trained one: what decides the share of values that change is
the size of a step against the spacing of the values.
"""

import torch
from torch import Tensor, nn

from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import DefaultRope, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.weights.strips import Tensors

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
"""5.8 million values: a step takes a fraction of a second on one core."""


class Training:
    """A model that is one version further after each step."""

    def __init__(
        self, config: ModelConfig, *, device: str, learning_rate: float, tokens: tuple[int, int]
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._chance = torch.Generator(device).manual_seed(0)
        self._masters = _fresh(config, device, self._chance)
        self._decoder = Decoder.empty(config, device=device, dtype=torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._masters.values(), lr=learning_rate, weight_decay=0.0)
        self._cast()

    @property
    def version(self) -> Tensors:
        """The weights as they are served; the next step overwrites them."""
        return {name: parameter.detach() for name, parameter in self._decoder.named_parameters()}

    def step(self) -> None:
        """One optimizer update on a batch of random sequences."""
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


def _fresh(config: ModelConfig, device: str, chance: torch.Generator) -> dict[str, Tensor]:
    """Float32 weights of a new model, made on the device."""
    masters: dict[str, Tensor] = {}
    for name, parameter in Decoder.empty(config, device=device, dtype=torch.float32).named_parameters():
        if name.endswith("norm.weight"):
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=config.initializer_range, generator=chance)
        masters[name] = parameter
    return masters
