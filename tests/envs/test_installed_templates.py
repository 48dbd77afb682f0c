"""Real chat templates, and renderers for them, where packages that ship them are installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.envs.chat.open_codec import choose_codec
from dora_rl.envs.chat.renderer_codec import RendererCodec
from dora_rl.envs.chat.template_codec import TemplateCodec

from .chat_families import LLAMA_TOKENS, MARKUP, QWEN_TOKENS, family

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks somewhere.",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string", "description": "The place."}},
            "required": ["where"],
        },
    },
}
ASK = {"role": "user", "content": "Where is it?"}
SEEN = {"role": "tool", "content": "Seen.", "name": "look", "tool_call_id": "abcdefghi"}
TOKENS = {
    "qwen2_5": (QWEN_TOKENS, MARKUP),
    "qwen3": (QWEN_TOKENS, MARKUP),
    "qwen3_instruct_2507": (QWEN_TOKENS, MARKUP),
    "llama3_1": (LLAMA_TOKENS, ()),
    "llama3_2": (LLAMA_TOKENS, ()),
    "glm4moe": (
        ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "<|endoftext|>"),
        (*MARKUP, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
}


def installed(name: str) -> ChatTokenizer:
    """A tokenizer with a template that trl ships."""
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("trl is not installed")
    path = Path(found.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"this trl ships no {path.name}")
    special, markup = TOKENS[name]
    named = {"bos_token": "<|begin_of_text|>"} if name.startswith("llama") else {}
    return family(path.read_text(encoding="utf-8"), special, markup, **named)


def codec_of(tokenizer: ChatTokenizer, tool_calls: Any = "auto", **options: Any) -> Any:
    return choose_codec(tokenizer, thinking="keep", tool_calls=tool_calls, options=options)


@pytest.mark.parametrize("tool_calls", ["auto", "own"])
@pytest.mark.parametrize("name", [name for name in TOKENS if name != "glm4moe"])
def test_a_real_template_is_grown_as_it_is_rendered_whole(name: str, tool_calls: str) -> None:
    tokenizer = installed(name)
    form = "llama_json" if name.startswith("llama") else "hermes"
    codec = codec_of(tokenizer, form if tool_calls == "own" else "auto")
    ids = codec.begin([ASK], [LOOK])
    body = '{"name": "look", "arguments": {"where": "here"}}'
    said = (
        f"<tool_call>\n{body}\n</tool_call>" if form == "hermes" else body.replace("arguments", "parameters")
    )
    stop = "<|eot_id|>" if form == "llama_json" else "<|im_end|>"
    turn = tokenizer.encode(said + stop)
    parsed = codec.parse(turn)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("look", {"where": "here"})]
    ids += turn
    ids += codec.extend(ids, [SEEN], [LOOK])
    chat = [ASK, parsed.message, SEEN]
    assert ids == codec.begin(chat, [LOOK])
    ids += tokenizer.encode("There." + stop)
    ids += codec.extend(ids, [ASK], [LOOK])
    assert ids == codec.begin([*chat, {"role": "assistant", "content": "There."}, ASK], [LOOK])


@pytest.mark.parametrize("name", ["qwen3", "llama3_2", "glm4moe"])
def test_a_family_that_renderers_knows_is_left_to_it(name: str) -> None:
    pytest.importorskip("renderers")
    assert isinstance(codec_of(installed(name)), RendererCodec)


@pytest.mark.parametrize("name", ["qwen3", "llama3_2"])
def test_a_renderer_and_the_template_write_the_same(name: str) -> None:
    pytest.importorskip("renderers")
    tokenizer = installed(name)
    form = "llama_json" if name.startswith("llama") else "hermes"
    theirs, ours = codec_of(tokenizer), codec_of(tokenizer, form)
    assert isinstance(theirs, RendererCodec)
    assert isinstance(ours, TemplateCodec)
    (stop,) = ours.stop_ids
    assert stop in theirs.stop_ids
    begun = ours.begin([ASK], [LOOK])
    assert theirs.begin([ASK], [LOOK]) == begun
    for said in ("There.", '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look"}\n</tool_call>', "{"):
        turn = tokenizer.encode(said)
        for end in ([stop], []):
            for new in ([ASK], [SEEN]):
                ids = [*begun, *turn, *end]
                assert theirs.extend(ids, new, [LOOK]) == ours.extend(ids, new, [LOOK])
        if name == "qwen3":
            assert theirs.parse([*turn, stop]) == ours.parse([*turn, stop])


def test_a_changed_template_is_not_left_to_a_renderer() -> None:
    pytest.importorskip("renderers")
    tokenizer = installed("qwen3")
    assert tokenizer.template is not None
    changed = tokenizer.template.replace("# Tools", "# My tools")
    special, markup = TOKENS["qwen3"]
    assert isinstance(codec_of(family(changed, special, markup)), TemplateCodec)


def test_without_renderers_calls_of_other_forms_are_refused() -> None:
    if find_spec("renderers"):
        pytest.skip("renderers reads them")
    with pytest.raises(UserError):
        codec_of(installed("glm4moe")).begin([ASK], [LOOK])
