"""Which types of models train and generate: tiny random ones, each through trainer, store and engine.

A row generates with the first version, trains a step on that, publishes it and generates again, so that what
the engine serves is what the trainer made: the gap is that of both.
"""

import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from msgspec.structs import replace

from dora_rl.bench.tiny_models import ALL, EOS, VOCAB_SIZE, save_tiny_hf
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.named import did_you_mean
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.trainer_config import OptimizerConfig, TrainerConfig
from dora_rl.core.record import Record
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import Engine, EngineOpening
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.model.hf.hf_model import HfModel
from dora_rl.model.language_model import Computing, load_model
from dora_rl.prepare.model_choice import read_checked, with_computing
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of
from dora_rl.weights.store import Store

_PROMPT_TOKENS = 16
_CONFIG = TrainerConfig(optimizer=OptimizerConfig(learning_rate=1e-3))


class ModelRow(Record, frozen=True):
    """What one type of model did."""

    model_type: str
    failure: str = ""
    """Why it does not train, in words; empty where it does."""
    computing: str = ""
    """Who trains and generates: `native` or `transformers`."""
    is_packed: bool = True
    """Whether sequences are packed and generated together."""
    trains: bool = False
    """Whether a step changed the weights, and the engine served what came of it."""
    gap_mean: float = 0.0
    """Mean distance of the logprobs of engine and trainer, in nats a token, of the worse version."""
    gap_max: float = 0.0
    mean_logprob: float = 0.0
    """Mean log-probability of the tokens, to judge the gap by."""
    generated_per_s: float = 0.0
    """Tokens drawn a second from the second version."""
    trained_per_s: float = 0.0
    """Tokens of whole sequences a second, in the second step."""


def settled_types(asked: str | None) -> list[str]:
    """The types that are named with commas, or all; a ConfigError for one that is not known."""
    if asked is None:
        return list(ALL)
    found = [each.strip() for each in asked.split(",") if each.strip()]
    for each in found:
        if each not in ALL:
            raise ConfigError(
                f"--types: there is no '{each}' here", hint=did_you_mean(each, list(ALL), "there are")
            )
    return found


def measured(model_type: str, *, num_requests: int, num_tokens: int) -> ModelRow:
    """Build a tiny model of a type, and train and generate with it, on one thread."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dora-bench-") as temporary:
        directory = save_tiny_hf(model_type, Path(temporary) / "model")
        try:
            recipe = with_computing(Recipe(), directory)
            model = read_checked(recipe, directory)
            row = ModelRow(
                model_type=model_type,
                computing=recipe.trainer.model,
                is_packed=not isinstance(model, HfModel) or model.why_whole is None,
            )
            return _trained(row, directory, Path(temporary) / "versions", num_requests, num_tokens)
        except UserError as error:
            return ModelRow(model_type=model_type, failure=error.message)


def _trained(row: ModelRow, directory: Path, versions: Path, num_requests: int, num_tokens: int) -> ModelRow:
    computing: Computing = "native" if row.computing == "native" else "transformers"
    decoder = load_model(directory, computing, dtype=torch.float32)
    trainer = trainer_of(decoder, _CONFIG)
    with Store(versions) as store:
        engine = _engine(row.computing, directory, store, num_requests, num_tokens)
        before = {name: each.clone() for name, each in trainer.served_tensors().items()}
        found = [_step(trainer, store, engine, version, num_requests, num_tokens) for version in range(2)]
        trainer_moved = any(not torch.equal(before[n], each) for n, each in trainer.served_tensors().items())
    last = found[-1]
    return replace(
        row,
        trains=trainer_moved and all(each.grad_norm > 0 for each in found),
        gap_mean=max(each.gap_mean for each in found),
        gap_max=max(each.gap_max for each in found),
        mean_logprob=last.mean_logprob,
        generated_per_s=num_requests * num_tokens / last.generate_s,
        trained_per_s=num_requests * (_PROMPT_TOKENS + num_tokens) / last.train_s,
    )


class _ModelStep(Record, frozen=True):
    grad_norm: float
    gap_mean: float
    gap_max: float
    mean_logprob: float
    generate_s: float
    train_s: float


def _step(
    trainer: Trainer, store: Store, engine: Engine, version: int, num_requests: int, num_tokens: int
) -> _ModelStep:
    """Publish the trainer's weights, generate with them, and train on what came."""
    store.publish(version, trainer.served_tensors())
    engine.finish_version(engine.begin_version(version))
    began = time.perf_counter()
    members = _generated(engine, version, num_requests, num_tokens)
    generated = time.perf_counter()
    half = num_requests // 2
    groups = (TrainGroup(id=0, members=members[:half]), TrainGroup(id=1, members=members[half:]))
    metrics = trainer.train(TrainBatch(groups=groups))
    return _ModelStep(
        grad_norm=metrics["grad_norm"],
        gap_mean=metrics["logprob_gap/mean"],
        gap_max=metrics["logprob_gap/max"],
        mean_logprob=sum(sum(each.logprobs) for each in members) / (num_requests * num_tokens),
        generate_s=generated - began,
        train_s=time.perf_counter() - generated,
    )


def _engine(kind: str, directory: Path, store: Store, num_requests: int, num_tokens: int) -> Engine:
    positions = _PROMPT_TOKENS + num_tokens
    limits = Limits(
        num_blocks=num_requests * (positions // 16 + 2),
        block_size=16,
        max_running=num_requests,
        step_tokens=max(64, num_requests),
        max_positions=positions,
    )
    opening = EngineOpening(
        config=EngineConfig(limits=limits, dtype=_CONFIG.serving_dtype, max_versions=2),
        model=directory,
        versions=store,
        stop_tokens=(EOS,),
    )
    # It tells its memory to the log of an instance; here results alone are printed.
    with redirect_stdout(StringIO()):
        return load_kind(kind).open(opening)


def _generated(
    engine: Engine, version: int, num_requests: int, num_tokens: int
) -> tuple[TrainTrajectory, ...]:
    """Responses of one length, drawn by the engine; every other one has a reward."""
    generator = torch.Generator().manual_seed(version)
    stopping = Stopping(max_new_tokens=num_tokens, is_length_prescribed=True)
    asked = []
    for number in range(num_requests):
        prompt = torch.randint(3, VOCAB_SIZE, (_PROMPT_TOKENS,), generator=generator).tolist()
        key = StreamKey(seed=version, row=number)
        id = version * num_requests + number
        asked.append(Request(id=id, version=version, prompt=tuple(prompt), key=key, stopping=stopping))
        engine.submit(asked[-1])
    while engine.step():
        pass
    ended = {event.id: event for event in engine.finished() if isinstance(event, Finished)}
    return tuple(
        TrainTrajectory(
            prompt=each.prompt,
            response=ended[each.id].tokens,
            logprobs=ended[each.id].logprobs,
            version=version,
            reward=float(each.id % 2),
        )
        for each in asked
    )
