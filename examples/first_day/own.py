"""Rows and a reward of one's own, for both trainers of this directory: a word with many vowels."""


def rows():
    """Two letters to begin with."""
    letters = "abcdefghijklmnop"
    return [{"prompt": f"{a}{b}:"} for a in letters for b in letters]


def share_of_vowels(completions, **columns):
    """Share of the characters of an answer that are vowels."""
    return [sum(each in "aeiou" for each in text) / max(1, len(text)) for text in completions]
