"""Models of the Hugging Face hub: downloaded into its cache, or one sentence that says why not.

Nothing is downloaded that the disk has no room for, and of a model that is only looked at no weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dora_rl.core.errors import NO_ROOM, ModelError
from dora_rl.prepare.machine import free_disk_bytes
from dora_rl.prepare.recipe_names import no_such_model

_GIB = 2**30
_DESCRIBING = ("*.json", "*.model", "*.txt", "*.jinja")
"""Files that say what a model is, tokenizer and all, but for its weights."""
_LOG_IN = "log in: `hf auth login`, or HF_TOKEN"


def from_hub(name: str, *, has_weights: bool = True) -> Path:
    """The directory of a model in the hub's cache, downloaded where it is not there yet."""
    from huggingface_hub import snapshot_download

    patterns = [*_DESCRIBING, *(("*.safetensors",) if has_weights else ())]
    with _telling(name):
        if has_weights:
            _check_disk(name, patterns)
        return Path(snapshot_download(name, allow_patterns=patterns))


def _check_disk(name: str, patterns: list[str]) -> None:
    """Refuse a download that is larger than what is free; a hub that cannot be asked is for the download."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(name, allow_patterns=patterns, dry_run=True)
    except DryRunError:
        return
    wanted = sum(each.file_size or 0 for each in files if each.will_download)
    cache = Path(constants.HF_HUB_CACHE)
    if wanted > (free := free_disk_bytes(cache)):
        raise _no_disk(name, f"{wanted / _GIB:.1f} GiB are to be downloaded, {free / _GIB:.1f} GiB are free")


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Turn what the hub's client raises into a ModelError with a way out."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"'{name}' is gated: the hub gives it to those alone whom its owners let in",
            hint=f"accept its terms on https://huggingface.co/{name}, then {_LOG_IN}",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"'{name}' is no directory here, and the Hugging Face hub has no such model, or a private one",
            hint=f"{no_such_model(name).hint}; for a private model {_LOG_IN}",
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        # The client wraps it where it had looked into its cache.
        if isinstance(error, OfflineModeIsEnabled) or isinstance(error.__cause__, OfflineModeIsEnabled):
            raise ModelError(
                f"'{name}' is no directory here, and HF_HUB_OFFLINE forbids to ask the Hugging Face hub",
                hint="unset HF_HUB_OFFLINE, or give a directory in Hugging Face format",
            ) from error
        raise ModelError(
            f"'{name}' is no directory here, and the Hugging Face hub cannot be reached",
            hint="look at the network, or at HF_ENDPOINT; or give a directory in Hugging Face format",
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise _no_disk(name, reason) from error
        raise ModelError(
            f"'{name}' is no directory here, and the Hugging Face hub does not give it: {reason}",
            hint=no_such_model(name).hint,
        ) from error


def _no_disk(name: str, reason: str) -> ModelError:
    from huggingface_hub import constants

    return ModelError(
        f"there is no room for '{name}' on the disk of {constants.HF_HUB_CACHE}: {reason}",
        hint="make room there, or set HF_HOME to a directory on another disk",
    )
