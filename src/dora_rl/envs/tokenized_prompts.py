"""Rows as token ids: the chat template is applied once, and nothing is tokenized again afterwards.

Knows a tokenizer only by the three calls it needs.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import DataConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Messages, Row


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that prompts need."""

    chat_template: Any

    def __call__(self, text: str) -> Any: ...

    def apply_chat_template(self, conversation: Messages, **options: Any) -> Any: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> Any: ...


class TokenizedPrompt(Record, frozen=True):
    """One row with its prompt as token ids, ready to start."""

    row: Row
    """The row, its prompt in the form that reward functions will see."""
    token_ids: tuple[int, ...]


class PromptSet(Record, frozen=True):
    """All the prompts of a run, in the order of their rows."""

    prompts: tuple[TokenizedPrompt, ...]
    num_overlong: int
    """Number of rows left out because their prompts are too long."""

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(prompt.token_ids) for prompt in self.prompts)


def tokenize_rows(rows: Iterable[Row], tokenizer: Tokenizer, config: DataConfig) -> PromptSet:
    """Every row's prompt as token ids; too long ones are an error or left out, as the config says."""
    tokenized = [tokenize_row(row, tokenizer, config) for row in rows]
    if tokenized and all(isinstance(prompt.row.prompt, str) for prompt in tokenized):
        _refuse_chat_keys(config)
    limit = config.max_prompt_tokens
    kept = [prompt for prompt in tokenized if limit is None or len(prompt.token_ids) <= limit]
    num_overlong = len(tokenized) - len(kept)
    if num_overlong and (config.overlong_prompts == "error" or not kept):
        raise _overlong(tokenized, num_overlong, config)
    return PromptSet(prompts=tuple(kept), num_overlong=num_overlong)


def untokenized_rows(rows: Iterable[Row], tokenizer: Tokenizer, config: DataConfig) -> PromptSet:
    """Rows of episodes, which begin with whatever their code says."""
    usual = DataConfig(train=config.train)
    for key in ("wrap_in_chat", "system_prompt", "max_prompt_tokens", "overlong_prompts"):
        if getattr(config, key) != getattr(usual, key):
            raise UserError(
                f"data.{key} is for rows with one response: an episode says itself what it begins with",
                hint=f"leave data.{key} out",
            )
    return PromptSet(prompts=tuple(TokenizedPrompt(row=row, token_ids=()) for row in rows), num_overlong=0)


def tokenize_row(row: Row, tokenizer: Tokenizer, config: DataConfig) -> TokenizedPrompt:
    """One row's prompt as token ids, however long."""
    prompt = row.prompt
    if prompt is None:
        raise UserError(
            f"row {row.row} has no prompt, and there is no episode that says something else",
            hint="name one: episode: {function: file.py:play}",
        )
    if isinstance(prompt, str) and config.wrap_in_chat:
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        token_ids = tokenizer(prompt)["input_ids"]
    else:
        if config.system_prompt is not None and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": config.system_prompt}, *prompt]
        token_ids = _chat_ids(prompt, row.row, tokenizer, config)
    if not token_ids:
        raise UserError(f"the prompt of row {row.row} has no tokens", hint="every prompt needs at least one")
    seen = Row(row=row.row, prompt=prompt, columns=row.columns)
    return TokenizedPrompt(row=seen, token_ids=tuple(token_ids))


def _chat_ids(messages: Messages, row: int, tokenizer: Tokenizer, config: DataConfig) -> list[int]:
    if tokenizer.chat_template is None:
        raise UserError(
            f"the prompt of row {row} is a chat, but the tokenizer has no chat template",
            hint="use a chat model, or prompts that are strings",
        )
    # A chat that ends with the assistant's words is to be continued, not answered.
    is_begun = messages[-1]["role"] == "assistant"
    try:
        encoded = tokenizer.apply_chat_template(
            messages,
            tokenize=True,
            return_dict=True,
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
            **config.template_options,
        )
    except Exception as error:  # a template is a program: it raises by itself, or trips over what it is given
        raise UserError(
            f"the chat template cannot take the prompt of row {row}: {type(error).__name__}: {error}",
            hint="a template may want roles in turn, a content that is text, or no system message",
        ) from error
    ids: list[int] = encoded["input_ids"]
    return ids


def _refuse_chat_keys(config: DataConfig) -> None:
    """Refuse what is said of chats where every prompt is plain text."""
    for key in ("system_prompt", "template_options"):
        if getattr(config, key):
            raise UserError(
                f"data.{key} is for chats, and every prompt is plain text",
                hint=f"set data.wrap_in_chat=true to make chats of them, or leave data.{key} out",
            )


def _overlong(tokenized: list[TokenizedPrompt], num_overlong: int, config: DataConfig) -> UserError:
    longest = max(tokenized, key=lambda prompt: len(prompt.token_ids))
    hint = "raise max_prompt_tokens, or leave such rows out with overlong_prompts: skip"
    if config.overlong_prompts == "skip":
        shortest = min(len(prompt.token_ids) for prompt in tokenized)
        hint = f"none would be left: raise max_prompt_tokens; the shortest prompt has {shortest}"
    return UserError(
        f"{num_overlong} of {len(tokenized)} prompts have more than max_prompt_tokens = "
        f"{config.max_prompt_tokens} tokens; "
        f"the longest, row {longest.row.row}, has {len(longest.token_ids)}",
        hint=hint,
    )
