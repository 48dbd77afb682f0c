"""A failure of the user's code in one line."""

_MOST_CHARACTERS = 200


def failure_line(detail: str) -> str:
    """Of a traceback, the exception and the first line of its message; of other words, their first line."""
    lines = detail.strip().splitlines() or [""]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    said = [line for line in lines[frames[-1] :] if not line.startswith(" ")] if frames else lines
    return (said or lines[-1:])[0].strip()[:_MOST_CHARACTERS]
