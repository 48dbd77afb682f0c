"""Text that a model, a reward or a file name made, for people to look at: nothing in it acts or hides.

A terminal obeys escape sequences, a carriage return writes over a line, a direction mark turns it round,
and what has no width is not seen at all. Whatever shows text that is not the program's own shows it through
here; what scripts read (JSON lines) keeps it as it is.
"""

import html
import re
import unicodedata

_SHOWN_ESCAPES = {"\r": "\\r", "\x07": "\\a", "\x08": "\\b", "\x1b": "\\e"}
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0\u034f"
"""Letters and marks that are drawn as nothing, though by their category they are none of the invisible."""
_PLAIN = re.compile(r"[\n\t -~]*")


def visible(text: str) -> str:
    """Text with every character that acts or cannot be seen written out, `\\e[31m` and `\\u202e`.

    Ends of lines and tabs stay: `one_line` is for where a line must stay one.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(char if _is_plain(char) else _written_out(char) for char in text)


def one_line(text: str) -> str:
    """Text as one line: what `visible` leaves of ends of lines and tabs is written out too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def as_html(text: str) -> str:
    """Text as it may stand in a page, in an element or in a quoted attribute."""
    return html.escape(visible(text))


def _is_plain(char: str) -> bool:
    if char in "\n\t":
        return True
    # Cc controls, Cf formats (direction, zero width, tags), Cs halves of a pair, Zl and Zp line ends.
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in _BLANKS


def _written_out(char: str) -> str:
    code = ord(char)
    if char in _SHOWN_ESCAPES:
        return _SHOWN_ESCAPES[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
