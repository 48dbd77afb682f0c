"""A tokenizer of single characters, for models trained from nothing.

An ordinary fast tokenizer: saved beside a model it makes a directory that transformers opens like any
other.
"""

import string
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIALS = (PAD, UNKNOWN, END, *(f"<|{role}|>" for role in ROLES))
ALPHABET = "\n" + string.printable[:95]

CHAT_TEMPLATE = (
    # Of tools only their names: a model this small is told by examples what they take.
    "{% if tools %}{{ '<|system|>' }}"
    "{% for tool in tools %}{{ tool['function']['name'] + ' ' }}{% endfor %}"
    "{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def character_tokenizer(alphabet: str = ALPHABET) -> "PreTrainedTokenizerFast":
    """One token for each character of the alphabet, after those for roles, padding and the end of a turn."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *alphabet))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIALS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
