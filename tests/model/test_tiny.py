"""A model from nothing is complete, seeded, and learns."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dora_rl.cli.main import app
from dora_rl.model.attention import PackedAttention
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import seeded_decoder, tiny_config
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer


def test_the_command_writes_a_directory_that_transformers_opens(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["model", "tiny", str(tmp_path / "model"), "--seed", "3"])
    assert result.exit_code == 0, result.output
    tokenizer = load_tokenizer(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert load_eos_ids(tmp_path / "model") == {tokenizer.eos_token_id}
    assert model.config.vocab_size == len(tokenizer) == load_decoder(tmp_path / "model").config.vocab_size
    assert model.generate(**tokenizer("1+1=", return_tensors="pt"), max_new_tokens=3).shape[0] == 1


def test_a_seed_fixes_every_weight() -> None:
    one, same, other = (seeded_decoder(tiny_config(40), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_a_tiny_model_learns_a_sequence() -> None:
    decoder = seeded_decoder(tiny_config(40), seed=0)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    tokens = torch.randint(0, 40, (60,), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(59)
    losses = []
    for _ in range(40):
        hidden = decoder(tokens[:-1], positions, PackedAttention([59]))
        loss = -decoder.logprobs(hidden, tokens[1:]).logprobs_T.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3.5
    assert losses[-1] < 0.5
