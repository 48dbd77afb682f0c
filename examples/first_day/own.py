"""Rows and a reward of one's own, for both trainers of this directory: say a letter as often as asked."""


def rows():
    """Prompts such as `d3:`, and what is wanted of the answer, `ddd`."""
    letters = "abcdefghijklmnopqrst"
    return [{"prompt": f"{letter}{n}:", "solution": letter * n} for letter in letters for n in range(1, 9)]


def share_right(completions, solution, **columns):
    """Share of the places at which the answer is as wanted, over the longer of the two."""
    return [
        sum(own == want for own, want in zip(text, wanted, strict=False)) / max(len(text), len(wanted))
        for text, wanted in zip(completions, solution, strict=True)
    ]
