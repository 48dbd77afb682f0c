"""A tokenizer directory as a codec needs it: text to ids and back, special tokens, the chat template.

Reads the files itself, so that a process full of environments imports neither transformers nor torch.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dora_rl.core.errors import ModelError
from dora_rl.model.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that are part of what was said, even where a tokenizer calls them special."""


class ChatTokenizer:
    """Text to token ids and back; never adds a token of its own accord."""

    def __init__(self, tokenizer: "Tokenizer", special: dict[str, str], template: str | None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special = special
        """Special tokens by the name under which a template asks for them."""
        self.template = template
        """The source of the chat template; None if there is none."""
        added = tokenizer.get_added_tokens_decoder()
        self.added = {token.content: number for number, token in added.items()}
        """Tokens that are cut out of a text first, and so are never merged with what is near."""
        self._unsaid = {
            number for number, token in added.items() if token.special and token.content not in _MARKUP
        }

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens in it are themselves."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_opening(self, text: str) -> list[int]:
        """The ids of a text that begins a context, with what the tokenizer puts before one."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def said(self, ids: Sequence[int]) -> str:
        """The text of ids without special tokens; ids that no token has are passed over."""
        last = self._tokenizer.get_vocab_size() - 1
        return self.decode([number for number in ids if 0 <= number <= last and number not in self._unsaid])

    def token_id(self, token: str) -> int | None:
        """The id of a token by its text; None if there is no such token."""
        number: int | None = self._tokenizer.token_to_id(token)
        return number


def open_chat_tokenizer(directory: Path) -> ChatTokenizer:
    """The tokenizer of a model or run directory."""
    tokenizer = open_tokenizer(directory / "tokenizer.json")
    settings = _settings(directory / "tokenizer_config.json")
    special = {name: _token(settings[name]) for name in _SPECIAL if settings.get(name)}
    return ChatTokenizer(tokenizer, special, _template(directory, settings.get("chat_template")))


def _settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _token(value: Any) -> str:
    """A special token's text; older files hold a mapping."""
    return str(value["content"] if isinstance(value, dict) else value)


def _template(directory: Path, setting: Any) -> str | None:
    """The chat template: a file of its own, or a setting, of which some tokenizers have several by name."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if isinstance(setting, list):
        by_name = {each["name"]: each["template"] for each in setting}
        setting = by_name.get("default") or next(iter(by_name.values()), None)
    return setting if isinstance(setting, str) else None
