"""Kinds of engines by name: built in, or one's own as `module:object` or `file.py:object`."""

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import did_you_mean, is_place, load_named
from dora_rl.engines.protocol import EngineKind

KINDS = {
    "native": "dora_rl.engines.native.kind:NATIVE",
    "transformers": "dora_rl.engines.native.transformers_kind:TRANSFORMERS",
    "vllm": "dora_rl.engines.vllm.kind:VLLM",
}


def load_kind(name: str) -> EngineKind:
    """Load the engine kind of a name; a UserError where there is none or its module cannot be imported."""
    if name not in KINDS and not is_place(name):
        raise ConfigError(
            f"there is no engine '{name}'",
            hint=did_you_mean(name, list(KINDS), "engines")
            + "; one of your own is module:object or file.py:object",
        )
    kind: EngineKind = load_named(KINDS.get(name, name))
    if isinstance(kind, type) or not all(callable(getattr(kind, each, None)) for each in ("size", "open")):
        raise ConfigError(
            f"'{name}' is no kind of engine: an object with the methods size and open is needed",
            hint="see docs/extending.md; name an object, not its class",
        )
    return kind
