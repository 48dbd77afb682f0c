"""What an engine lets in: requests and KV that it can serve.

Refuses in words, before anything is changed.
"""

from collections.abc import Collection

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.transfer import Exported
from dora_rl.engines.requests import Request
from dora_rl.model.config import ModelSizes


class Intake:
    """The checks of one engine on what enters it."""

    def __init__(
        self, model: ModelSizes, config: EngineConfig, versions: Collection[int], stops: Stops
    ) -> None:
        self._model = model
        self._config = config
        self._versions = versions
        self._stops = stops

    def check(self, request: Request) -> None:
        """Refuse a request whose version, tokens or stopping rule this engine does not have."""
        if request.version not in self._versions:
            raise RequestError(f"version {request.version} is not resident; {list(self._versions)} are")
        self.check_stops(request.stopping.stop_strings)
        self.check_tokens((*request.prompt, *request.continued))

    def check_stops(self, stop_strings: tuple[str, ...]) -> None:
        """Refuse to look for strings where tokens cannot be read."""
        if stop_strings and not self._stops.knows_text:
            raise RequestError("stop strings need a tokenizer, and this engine has none")

    def check_tokens(self, tokens: tuple[int, ...]) -> None:
        """Refuse tokens the model does not have."""
        size = self._model.vocab_size
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise RequestError(
                f"token ids {min(tokens)} to {max(tokens)} are not all in a vocabulary of {size}"
            )

    def check_exported(self, exported: Exported) -> None:
        """Refuse a request that cannot go on here, or KV of another model or dtype."""
        self.check(exported.header.request)
        self.check_tokens(exported.header.tokens)
        model, num_tokens, kv = self._model, exported.header.num_computed, exported.kv
        shape = (model.num_layers, 2, num_tokens, model.num_kv_heads, model.head_dim)
        if kv is not None and (kv.shape != shape or kv.dtype != serving_dtype(self._config)):
            raise RequestError(f"KV {kv.dtype} {list(kv.shape)} is not of {num_tokens} tokens of this model")
