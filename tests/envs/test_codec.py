"""A chat grows behind what was sampled: earlier ids never change, and growing it is rendering it whole."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.chat_template import ChatTemplate
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.chat.open_codec import choose_codec, open_codec
from dora_rl.envs.chat.tool_calls import WRITERS
from dora_rl.model.characters import character_tokenizer
from dora_rl.model.tokenizer import save_tokenizer

from .chat_families import CHATML, FAMILIES, QWEN25, THINKING, characters, family, qwen

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks somewhere.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}
Chat = list[dict[str, Any]]


def codec_of(
    tokenizer: ChatTokenizer, *, thinking: str = "keep", tool_calls: str = "auto", **options: Any
) -> Any:
    return choose_codec(tokenizer, thinking=thinking, tool_calls=tool_calls, options=options)  # type: ignore[arg-type]


@cache
def opened(name: str, thinking: str = "keep") -> tuple[ChatTokenizer, Codec]:
    tokenizer = FAMILIES[name]()
    return tokenizer, codec_of(tokenizer, thinking=thinking)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "abcdefghi", "name": "look"}


def sampled(tokenizer: ChatTokenizer, codec: Codec, text: str) -> list[int]:
    """The ids a model would have sampled: text and the token that ends a turn."""
    return [*tokenizer.encode(text), *codec.stop_ids]


def call_text(name: str, tokenizer: ChatTokenizer, codec: Codec, where: str) -> str:
    form = "llama_json" if name == "llama3" else "hermes"
    return WRITERS[form]("look", {"where": where})  # type: ignore[index]


WORDS = st.text(
    st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="<>{}[]|"), min_size=1, max_size=30
).map(lambda text: f"a{text.strip()}b")
ROUNDS = st.lists(st.tuples(WORDS, st.one_of(st.none(), WORDS), WORDS), min_size=1, max_size=4)


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, system=st.one_of(st.none(), WORDS), with_tools=st.booleans())
def test_growing_a_chat_is_rendering_it_whole(
    name: str, rounds: list[tuple[str, str | None, str]], system: str | None, with_tools: bool
) -> None:
    tokenizer, codec = opened(name)
    tools = [LOOK] if with_tools else []
    chat: Chat = [{"role": "system", "content": system}] if system else []
    ids: list[int] = []
    for asked, looked, answer in rounds:
        new = [user(asked)]
        for said, reply in ((looked, True), (answer, False)):
            if said is None:
                continue
            chat += new
            appended = codec.extend(ids, new, tools) if ids else codec.begin(chat, tools)
            assert appended is not None
            ids += appended
            assert ids == codec.begin(chat, tools)
            text = call_text(name, tokenizer, codec, said) if reply else said
            turn = sampled(tokenizer, codec, text)
            parsed = codec.parse(turn)
            assert [call.arguments for call in parsed.tool_calls] == ([{"where": said}] if reply else [])
            assert parsed.text == ("" if reply else said)
            chat.append(parsed.message)
            ids += turn
            new = [result(f"{said} was seen")]


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=60)
@given(numbers=st.lists(st.integers(0, 700), max_size=60))
def test_whatever_was_sampled_can_be_read_and_grown(name: str, numbers: list[int]) -> None:
    _tokenizer, codec = opened(name)
    parsed = codec.parse(numbers)
    json.dumps(parsed.message).encode()
    begun = codec.begin([user("Where?")])
    appended = codec.extend([*begun, *numbers], [user("And now?")])
    assert appended is not None
    tail = codec.extend([*begun, *codec.stop_ids], [user("And now?")])
    assert tail is not None
    assert appended[-len(tail) :] == tail


def test_ids_that_no_token_has_are_passed_over() -> None:
    _, codec = opened("qwen3")
    assert codec.parse([-1, 10**6, 2**40]).text == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_cut_by_length_is_bridged_with_its_stop_token(name: str) -> None:
    tokenizer, codec = opened(name)
    begun, cut = codec.begin([user("Where?")]), tokenizer.encode("It is")
    (stop,) = codec.stop_ids
    new = [user("Go on.")]
    assert codec.extend([*begun, *cut], new) == [stop, *(codec.extend([*begun, *cut, stop], new) or ())]


def test_a_turn_cut_in_its_thinking_is_closed_first() -> None:
    tokenizer, codec = opened("qwen3")
    begun = codec.begin([user("Where?")])
    appended = codec.extend([*begun, *tokenizer.encode("<think>\nIt may be")], [user("Go on.")])
    assert appended is not None
    assert tokenizer.decode(appended) == (
        "\n</think>\n\n<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    )
    closed = codec.extend([*begun, *tokenizer.encode("<think>\nHm\n</think>\n\nIt")], [user("Go on.")])
    assert closed is not None
    assert tokenizer.decode(closed).startswith("<|im_end|>")


def test_a_cut_turn_does_not_take_the_thinking_of_an_earlier_one_for_its_own() -> None:
    tokenizer, codec = opened("qwen3")
    ids = [*codec.begin([user("Say <think>.")]), *tokenizer.encode("It is")]
    appended = codec.extend(ids, [user("Go on.")])
    assert appended is not None
    assert tokenizer.decode(appended).startswith("<|im_end|>")


def test_sampled_ids_are_not_rendered_again() -> None:
    """A model may spell a text in other tokens than the tokenizer would: they stay."""
    tokenizer, codec = opened("qwen2.5")
    letters = [number for letter in "It is there." for number in tokenizer.encode(letter)]
    assert letters != tokenizer.encode("It is there.")
    ids = [*codec.begin([user("Where?")]), *letters, *codec.stop_ids]
    appended = codec.extend(ids, [user("And now?")])
    assert appended == codec.extend(
        [*codec.begin([user("Where?")]), *sampled(tokenizer, codec, "It is there.")], [user("And now?")]
    )


# Thinking


def test_thinking_is_read_and_kept_in_one_branch() -> None:
    tokenizer, codec = opened("qwen3")
    turn = sampled(tokenizer, codec, "<think>\nOn the table?\n</think>\n\nThere.")
    parsed = codec.parse(turn)
    assert (parsed.thinking, parsed.text) == ("On the table?", "There.")
    assert parsed.message["reasoning_content"] == "On the table?"
    assert codec.extend([*codec.begin([user("Where?")]), *turn], [user("Sure?")]) is not None


@pytest.mark.parametrize("name", ["qwen3", "chatml", "plain", "characters"])
def test_stripped_thinking_opens_a_branch_at_a_users_message_and_only_there(name: str) -> None:
    tokenizer, codec = opened(name, "strip")
    turn = sampled(tokenizer, codec, "<think>\nOn the table?\n</think>\n\nThere.")
    ids = [*codec.begin([user("Where?")]), *turn]
    assert codec.extend(ids, [user("Sure?")]) is None
    after_tool = codec.extend(ids, [result("Seen.")])
    assert after_tool is not None
    again = [*ids, *after_tool, *sampled(tokenizer, codec, "Yes.")]
    assert codec.extend(again, [user("Sure?")]) is None, "thinking before the tool's result counts as well"
    chat = [user("Where?"), codec.parse(turn).message, user("Sure?")]
    branch = codec.begin(chat)
    assert "On the table?" not in tokenizer.decode(branch)
    assert codec.extend([*branch, *sampled(tokenizer, codec, "Yes.")], [user("Really?")]) is not None


def test_an_empty_block_of_thinking_is_none() -> None:
    tokenizer = FAMILIES["qwen3"]()
    codec = codec_of(tokenizer, thinking="strip", enable_thinking=False)
    begun = codec.begin([user("Where?")])
    assert tokenizer.decode(begun).endswith("<think>\n\n</think>\n\n")
    assert codec.extend([*begun, *sampled(tokenizer, codec, "There.")], [user("Sure?")]) is not None


def test_thinking_that_the_template_opens_is_thinking_of_the_turn() -> None:
    tokenizer = qwen(THINKING)
    codec = codec_of(tokenizer)
    begun = codec.begin([user("Where?")])
    assert tokenizer.decode(begun).endswith("<think>\n")
    turn = sampled(tokenizer, codec, "On the table?\n</think>\n\nThere.")
    assert (codec.parse(turn).thinking, codec.parse(turn).text) == ("On the table?", "There.")
    cut = codec.extend([*begun, *tokenizer.encode("On the")], [user("Sure?")])
    assert cut is not None
    assert tokenizer.decode(cut).startswith("\n</think>\n\n<|im_end|>")


def test_thinking_without_an_end_leaves_no_text() -> None:
    tokenizer, codec = opened("qwen3")
    parsed = codec.parse(tokenizer.encode('<think>\nMaybe <tool_call>{"name": "look"}</tool_call>'))
    assert parsed.text == ""
    assert parsed.tool_calls == ()


# Tools


def test_a_template_that_knows_no_tools_is_told_of_them_in_words() -> None:
    tokenizer, codec = opened("chatml")
    text = tokenizer.decode(codec.begin([user("Where?")], [LOOK]))
    assert "Looks somewhere." in text
    assert "<tool_call>" in text
    assert "look" not in tokenizer.decode(codec.begin([user("Where?")]))


def test_results_become_the_users_where_the_role_is_refused() -> None:
    refusing = CHATML.replace(
        "{{- '<|im_start|>' + message.role",
        "{%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{- '<|im_start|>' + message.role",
    )
    tokenizer = family(refusing, ("<|im_start|>", "<|im_end|>"), eos_token="<|im_end|>")
    codec = codec_of(tokenizer)
    ids = [*codec.begin([user("Where?")]), *sampled(tokenizer, codec, "x")]
    appended = codec.extend(ids, [result("here"), result("there")])
    assert appended is not None
    assert tokenizer.decode(appended) == (
        "\n<|im_start|>user\n<tool_response>\nhere\n</tool_response>\n<tool_response>\nthere\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_another_form_of_calls_than_the_templates_is_taught_and_written_by_us() -> None:
    tokenizer = qwen(QWEN25)
    codec = codec_of(tokenizer, tool_calls="llama_json")
    assert '"parameters": {...}' in tokenizer.decode(codec.begin([user("Where?")], [LOOK]))
    turn = sampled(tokenizer, codec, '{"name": "look", "parameters": {"where": "here"}}')
    message = codec.parse(turn).message
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": {"where": "here"}}
    whole = codec.begin([user("Where?"), message, result("Seen.")])
    assert whole == [
        *codec.begin([user("Where?")]),
        *turn,
        *(codec.extend([*codec.begin([user("Where?")]), *turn], [result("Seen.")]) or ()),
    ]


def test_calls_in_a_form_nobody_knows_are_refused_with_tools_and_not_without() -> None:
    template = QWEN25.replace('{"name": "', "[[").replace('", "arguments": ', "]](")
    tokenizer = qwen(template)
    codec = codec_of(tokenizer)
    assert codec.begin([user("Where?")])
    with pytest.raises(UserError, match="tool calls in a form that is not known"):
        codec.begin([user("Where?")], [LOOK])
    with pytest.raises(UserError, match="tool calls in a form that is not known"):
        codec.extend(sampled(tokenizer, codec, "x"), [result("Seen.")])
    assert codec_of(tokenizer, tool_calls="hermes").begin([user("Where?")], [LOOK])


def test_ids_of_calls_are_those_of_the_tokens() -> None:
    tokenizer, codec = opened("qwen2.5")
    text = '<tool_call>{"name": "look"}</tool_call>' * 2
    first, again = (codec.parse(tokenizer.encode(text)) for _ in range(2))
    assert first == again
    assert len({call.id for call in first.tool_calls}) == 2
    assert all(len(call.id) == 9 and call.id.isalnum() for call in first.tool_calls)


# Templates that cannot be extended


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("'<|im_end|>\\n' }}\n{%- endfor", "'\\n' }}\n{%- endfor"), "which is no token"),
        (
            ("{{- '<|im_start|>' + message.role", "{{- loop.length ~ '<|im_start|>' + message.role"),
            "once there is an answer",
        ),
        (
            (
                "message.content + '<|im",
                "(message.content if loop.index0 + 3 > loop.length else '...') + '<|im",
            ),
            "once a message by user follows",
        ),
        (
            ("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>bot\\n' }}"),
            "assistant.n' where '.*bot.n' stood",
        ),
        (("message.content", "''"), "leaves out what the assistant said"),
    ],
)
def test_a_template_that_cannot_be_extended_is_refused_in_a_sentence(
    change: tuple[str, str], says: str
) -> None:
    assert change[0] in CHATML
    tokenizer = family(CHATML.replace(*change), ("<|im_start|>", "<|im_end|>"))
    with pytest.raises(UserError, match=says) as refused:
        codec_of(tokenizer)
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_tools_that_move_with_the_last_message_are_refused_with_tools_only() -> None:
    template = CHATML.replace(
        "    {{- '<|im_start|>' + message.role",
        "    {%- if tools and loop.last %}{{ tools | tojson }}{% endif %}{{- '<|im_start|>' + message.role",
    )
    codec = codec_of(family(template, ("<|im_start|>", "<|im_end|>")))
    assert codec.begin([user("Where?")])
    with pytest.raises(UserError, match="with tools, the chat template"):
        codec.begin([user("Where?")], [LOOK])


def test_what_a_template_refuses_is_a_sentence() -> None:
    _, codec = opened("llama3")
    call = {"id": "x", "type": "function", "function": {"name": "look", "arguments": {}}}
    with pytest.raises(UserError, match="one call at a time"):
        codec.begin([user("Where?"), {"role": "assistant", "tool_calls": [call, call]}, result("x")])


def test_a_template_with_an_error_is_a_sentence() -> None:
    with pytest.raises(UserError, match="the chat template cannot be read"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chat_needs_a_message(name: str) -> None:
    with pytest.raises(UserError, match="begins with no message"):
        opened(name)[1].begin([])


def test_options_for_a_template_that_is_not_there_are_refused() -> None:
    with pytest.raises(UserError, match="template options"):
        codec_of(FAMILIES["plain"](), enable_thinking=False)


# The way from a directory, and beside transformers


def test_a_directory_is_opened_without_torch_or_transformers(tmp_path: Path) -> None:
    save_tokenizer(character_tokenizer(), tmp_path)
    script = (
        "import sys; from pathlib import Path; from dora_rl.envs.chat.open_codec import open_codec\n"
        f"codec = open_codec(Path({str(tmp_path)!r}))\n"
        "print(codec.begin(['hi']))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=50
    )
    assert json.loads(shown.stdout) == open_codec(tmp_path).begin([user("hi")])


@pytest.mark.parametrize("name", ["characters", "chatml", "qwen2.5", "qwen3"])
def test_a_chat_begins_as_transformers_renders_it(name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer, codec = opened(name)
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, **tokenizer.special)
    chat = [user("Where?"), {"role": "assistant", "content": "There <b>."}, user("Really & truly?")]
    for tools in ([], [LOOK]) if name.startswith("qwen") else ([],):
        for messages, is_begun in ((chat, False), (chat[:2], True)):
            rendered = theirs.apply_chat_template(
                messages,
                tools=tools or None,
                chat_template=tokenizer.template,
                add_generation_prompt=not is_begun,
                continue_final_message=is_begun,
                return_dict=True,
            )
            assert codec.begin(messages, tools) == rendered["input_ids"]


def test_a_template_knows_one_date() -> None:
    tokenizer, codec = opened("llama3")
    assert "Today: 26 Jul 2024" in tokenizer.decode(codec.begin([user("When?")]))


# Cost


class CountingTokenizer(ChatTokenizer):
    """A tokenizer that counts the characters it is given and gives."""

    characters = 0

    def encode(self, text: str) -> list[int]:
        self.characters += len(text)
        return super().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        text = super().decode(ids)
        self.characters += len(text)
        return text


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_costs_the_same_however_long_the_chat_is(name: str, is_cut: bool, monkeypatch: Any) -> None:
    made = FAMILIES[name]()
    tokenizer = CountingTokenizer(made._tokenizer, made.special, made.template)
    codec, rendered = codec_of(tokenizer), []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, *arguments: Any, **options: Any) -> str:
        text = render(self, *arguments, **options)
        rendered.append(len(text))
        return text

    monkeypatch.setattr(ChatTemplate, "render", counted)
    ids, costs = codec.begin([user("Where is it?")]), []
    for _ in range(128):
        ids += tokenizer.encode("It is there.") + ([] if is_cut else [*codec.stop_ids])
        tokenizer.characters = 0
        rendered.clear()
        appended = codec.extend(ids, [user("And now?")])
        assert appended is not None
        costs.append(tokenizer.characters + sum(rendered))
        ids += appended
    assert set(costs) == {costs[0]}, "every turn renders, encodes and decodes the same"
    assert costs[0] < 600


def test_the_tiny_model_keeps_its_form() -> None:
    tokenizer = characters()
    codec = codec_of(tokenizer)
    ids = codec.begin(["2+3="])
    assert tokenizer.decode(ids) == "<|user|>2+3=<|end|><|assistant|>"
    appended = codec.extend([*ids, *sampled(tokenizer, codec, "5")], [result("right")])
    assert appended is not None
    assert tokenizer.decode(appended) == "<|tool|>right<|end|><|assistant|>"


def test_an_answer_already_begun_is_gone_on_with() -> None:
    tokenizer, codec = opened("qwen2.5")
    begun = [user("Where?"), {"role": "assistant", "content": "It is"}]
    assert tokenizer.decode(codec.begin(begun)).endswith("<|im_start|>assistant\nIt is")
    turn = [*codec.begin([user("Where?")]), *sampled(tokenizer, codec, "x")]
    appended = codec.extend(turn, begun)
    assert appended is not None
    assert tokenizer.decode(appended).endswith("<|im_start|>assistant\nIt is")
