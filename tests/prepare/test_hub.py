"""What keeps a model of the hub away is one sentence and a way out."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from dora_rl.core.errors import ModelError
from dora_rl.prepare.hub import from_hub

NAME = "somebody/some-model"


def wrapped() -> LocalEntryNotFoundError:
    """What the client raises offline, once it has found its cache empty."""
    error = LocalEntryNotFoundError("no snapshot folder")
    error.__cause__ = OfflineModeIsEnabled("offline")
    return error


def answer(status: int) -> Any:
    """As much of a response as the client's errors look at."""
    return SimpleNamespace(headers={}, status_code=status, request=None)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (GatedRepoError("401", response=answer(401)), "is gated", f"https://huggingface.co/{NAME}"),
        (RepositoryNotFoundError("404", response=answer(404)), "has no such model, or a private", "hf auth"),
        (LocalEntryNotFoundError("no connection"), "cannot be reached", "look at the network"),
        (wrapped(), "HF_HUB_OFFLINE forbids", "unset HF_HUB_OFFLINE"),
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE forbids", "unset HF_HUB_OFFLINE"),
        (OSError(errno.ENOSPC, "No space left on device"), "there is no room for", "HF_HOME"),
        (HfHubHTTPError("503 busy\nmore", response=answer(503)), "does not give it: 503 busy", "directory"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_each_reason_is_a_sentence(
    error: Exception, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, *, allow_patterns: list[str], dry_run: bool = False) -> str:
        raise DryRunError("cannot say") if dry_run else error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    with pytest.raises(ModelError, match=message) as told:
        from_hub(NAME)
    assert NAME in told.value.message
    assert "\n" not in told.value.message
    assert hint in str(told.value.hint)


def test_nothing_is_downloaded_that_the_disk_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    downloaded: list[list[str]] = []
    sizes = [(2**60, True), (2**20, True), (None, True)]

    def download(name: str, *, allow_patterns: list[str], dry_run: bool = False) -> Any:
        if dry_run:
            return [SimpleNamespace(file_size=size, will_download=is_missing) for size, is_missing in sizes]
        downloaded.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        ModelError, match=r"no room for .*: 1073741824\.0 GiB are to be downloaded, .* are free"
    ):
        from_hub(NAME)
    assert not downloaded
    # To look at it takes no weights.
    assert from_hub(NAME, has_weights=False) == tmp_path
    assert "*.safetensors" not in downloaded[-1]
    sizes[0] = (2**60, False)
    assert from_hub(NAME) == tmp_path
    assert "*.safetensors" in downloaded[-1]
