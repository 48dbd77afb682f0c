"""Small tokenizers with chat templates in the shapes that families of models have, written for tests."""

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.model.characters import CHAT_TEMPLATE, character_tokenizer

CORPUS = [
    "What is two and three? The answer is five. Where is the book? It is on the table in the kitchen.",
    "system user assistant tool ipython Look here and there, then say what you have seen.\n\n",
    '{"name": "look", "arguments": {"where": "here"}, "parameters": {"type": "object"}}',
    "<tool_response>\n\n</tool_response>\n<think>\n\n</think>\n\n",
]

PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama's and Qwen's tokenizers cut a text, in short: line ends stay together, whatever follows."""

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') }}
    {{- 'Tools:' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""
_CALLS = """\
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{ '\\n' }}{% endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
"""
_RESULTS = """\
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
"""
QWEN25 = (
    _TOOLS
    + """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + content }}
"""
    + _CALLS
    + _RESULTS
    + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN3 = (
    _TOOLS
    + """\
{%- set seen = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set seen.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- set thought = message.reasoning_content or '' %}
        {%- if loop.index0 > seen.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
"""
    + _CALLS
    + _RESULTS
    + """\
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
)
THINKING = QWEN3.replace("enable_thinking is defined and not enable_thinking", "true").replace(
    "{{ '<think>\\n\\n</think>\\n\\n' }}", "{{ '<think>\\n' }}"
)
"""A template that opens the thinking itself."""
LLAMA3 = """\
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content | trim }}{% set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if 'tool_calls' in message %}
            {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
            {%- set call = message.tool_calls[0].function %}
            {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
        {%- elif tools is not none and loop.first %}
            {{- 'Call one of these:' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
            {{- '\\n' + message.content | trim }}
        {%- else %}
            {{- message.content | trim }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

QWEN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LLAMA_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)


@cache
def _bytes_with_merges() -> str:
    """A byte-level tokenizer with some merges, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def family(
    template: str | None, special: tuple[str, ...], markup: tuple[str, ...] = (), **named: str
) -> ChatTokenizer:
    """A tokenizer with these added tokens and this chat template."""
    tokenizer = Tokenizer.from_str(_bytes_with_merges())
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in markup])
    return ChatTokenizer(tokenizer, named, template)


def characters() -> ChatTokenizer:
    """The tokenizer of the tiny model."""
    return ChatTokenizer(
        character_tokenizer().backend_tokenizer,
        {"eos_token": "<|end|>", "unk_token": "<|unknown|>"},
        CHAT_TEMPLATE,
    )


def qwen(template: str) -> ChatTokenizer:
    """A tokenizer with Qwen's tokens."""
    return family(template, QWEN_TOKENS, MARKUP, eos_token="<|im_end|>")


FAMILIES = {
    "characters": characters,
    "chatml": lambda: family(CHATML, QWEN_TOKENS, eos_token="<|im_end|>"),
    "qwen2.5": lambda: qwen(QWEN25),
    "qwen3": lambda: qwen(QWEN3),
    "llama3": lambda: family(LLAMA3, LLAMA_TOKENS, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
    "plain": lambda: family(None, ("<|endoftext|>",), eos_token="<|endoftext|>"),
}
