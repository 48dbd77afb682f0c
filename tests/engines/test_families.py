"""Every family through the paged engine: logprobs of what is drawn are those of transformers.

Prompts are cut into chunks; contexts are bundled, read in place and gathered, and windows end inside them.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dora_rl.core.errors import ConfigError
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native import cpu_executor
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.model.hub_config import read_config

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 11},
    "smollm3": {"no_rope_layer_interval": 2},
    "granite": {
        "attention_multiplier": 0.11,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_scaling": 3.0,
    },
    "olmo2": {},
    "phi3": {"partial_rotary_factor": 0.5, "sliding_window": 30},
    "gemma3_text": {"sliding_window": 7, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24},
}


@pytest.fixture(params=FAMILIES, scope="module")
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type=request.param, **SIZES | FAMILIES[request.param])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data += 0.15 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def requests() -> list[Request]:
    """Prompts of 1 to 70 tokens, two of them in groups of three that share their blocks."""
    generator = torch.Generator().manual_seed(5)
    made: list[Request] = []
    for row, length in enumerate((1, 5, 16, 70, 41, 9)):
        prompt = tuple(torch.randint(0, 61, (length,), generator=generator).tolist())
        for member in range(3 if row in (2, 4) else 1):
            made.append(
                Request(
                    id=len(made),
                    version=row % 2,
                    prompt=prompt,
                    key=StreamKey(seed=0, row=row, member=member),
                    stopping=Stopping(max_new_tokens=20),
                    group=row,
                )
            )
    return made


@pytest.mark.parametrize("way", ["bundled", "spans", "batch invariant"])
def test_logprobs_are_those_of_transformers(
    directory: Path, reference: PreTrainedModel, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "spans":
        monkeypatch.setattr(cpu_executor, "SHORT_BYTES", 0)
    limits = Limits(num_blocks=60, block_size=8, max_running=6, step_tokens=24, max_positions=96)
    config = EngineConfig(limits=limits, max_versions=2, is_batch_invariant=way == "batch invariant")
    engine = NativeEngine(read_config(directory / "config.json"), config, Stops([]), backend=CPU)
    # Two versions that are one: where their rows share a pass, every module is asked for the right rows.
    for version in range(2):
        engine.load_version(version, directory)
    asked = {request.id: request for request in requests()}
    for request in asked.values():
        engine.submit(request)
    ended = [event for event in engine.run() if isinstance(event, Finished)]
    assert len(ended) == len(asked)
    for each in ended:
        prompt = asked[each.id].prompt
        with torch.no_grad():
            logits = reference(torch.tensor([[*prompt, *each.tokens]])).logits[0, len(prompt) - 1 : -1]
        theirs = logits.log_softmax(-1).gather(1, torch.tensor(each.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(each.logprobs), theirs, rtol=1e-4, atol=1e-4)


def test_a_gpu_refuses_what_its_kernels_do_not_compute(directory: Path) -> None:
    backend = pytest.importorskip("dora_rl.engines.native.cuda.cuda_backend").backend_on("cpu")
    model = read_config(directory / "config.json")
    limits = Limits(num_blocks=9, block_size=8, max_running=2, step_tokens=8, max_positions=64)
    if model.family == "smollm3":
        backend.check_model(model, EngineConfig(limits=limits))
        return
    with pytest.raises(ConfigError, match=r"does not serve .* on a GPU: its kernels lack") as raised:
        NativeEngine(model, EngineConfig(limits=limits), Stops([]), backend=backend)
    lacking = {
        "mistral": "a window of 11 tokens for sequences of 64",
        "granite": "multipliers",
        "olmo2": "norms behind attention and MLP, queries and keys normalised over all heads",
        "phi3": "a part of each head, a window of 30",
        "gemma3_text": "norms that add one to their weight, the activation gelu_tanh, multipliers",
    }
    assert lacking[model.family] in raised.value.message
