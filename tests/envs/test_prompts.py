"""A prompt becomes token ids once; what is over-long is an error or counted."""

from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import DataConfig, SourceConfig
from dora_rl.envs.data.rows import Prompt, Row
from dora_rl.envs.tokenized_prompts import PromptSet, tokenize_rows
from dora_rl.model.characters import END, character_tokenizer

TOKENIZER = character_tokenizer()


def tokenized(*prompts: Prompt, **choices: Any) -> PromptSet:
    rows = [Row(row=number, prompt=prompt, columns={}) for number, prompt in enumerate(prompts)]
    return tokenize_rows(rows, TOKENIZER, DataConfig(train=SourceConfig(name="x"), **choices))


def text(prompts: PromptSet) -> str:
    return TOKENIZER.decode(prompts.prompts[0].token_ids)


def test_a_string_is_its_tokens_and_a_chat_goes_through_the_template() -> None:
    assert text(tokenized("2+2=")) == "2+2="
    chat = [{"role": "user", "content": "2+2"}]
    assert text(tokenized(chat)) == f"<|user|>2+2{END}<|assistant|>"
    assert text(tokenized("2+2", wrap_in_chat=True)) == text(tokenized(chat))
    system = tokenized(chat, system_prompt="be brief")
    assert text(system) == f"<|system|>be brief{END}<|user|>2+2{END}<|assistant|>"
    assert system.prompts[0].row.prompt[0] == {"role": "system", "content": "be brief"}


def test_a_chat_of_its_own_system_message_keeps_it() -> None:
    chat = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    assert text(tokenized(chat, system_prompt="z")) == f"<|system|>x{END}<|user|>y{END}<|assistant|>"


def test_a_begun_answer_is_continued() -> None:
    chat = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "It is"}]
    assert text(tokenized(chat)) == f"<|user|>2+2{END}<|assistant|>It is"


def test_overlong_prompts_stop_the_run_or_are_left_out_and_counted() -> None:
    prompts = ("a" * 5, "b" * 6, "c" * 9)
    with pytest.raises(UserError, match=r"2 of 3 prompts .* the longest, row 2, has 9"):
        tokenized(*prompts, max_prompt_tokens=5)
    kept = tokenized(*prompts, max_prompt_tokens=6, overlong_prompts="skip")
    assert [prompt.row.row for prompt in kept.prompts] == [0, 1]
    assert (kept.num_overlong, kept.longest_tokens) == (1, 6)
    with pytest.raises(UserError, match="3 of 3"):
        tokenized(*prompts, max_prompt_tokens=1, overlong_prompts="skip")


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="row 0 has no tokens"):
        tokenized("")


def test_a_chat_needs_a_template() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = None
    row = Row(row=3, prompt=[{"role": "user", "content": "x"}], columns={})
    with pytest.raises(UserError, match="row 3 is a chat, but the tokenizer has no chat template"):
        tokenize_rows([row], tokenizer, DataConfig(train=SourceConfig(name="x")))


@pytest.mark.parametrize("given", [{"system_prompt": "be brief"}, {"template_options": {"thinks": True}}])
def test_what_is_said_of_chats_is_refused_where_there_are_none(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match="is for chats, and every prompt is plain text") as error:
        tokenized("ab", "cd", **given)
    assert "data.wrap_in_chat=true" in (error.value.hint or "")
    tokenized("ab", "cd", wrap_in_chat=True, **given)
