"""The look of every picture: colours that colour-blind readers can tell apart, few lines, plain words.

Figures are made directly, never through pyplot: no backend, no state, nothing to close.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"
RED = "#D55E00"
INK, GREY, PALE = "#262626", "#8C8C8C", "#E4E4E4"

VERSIONS = (BLUE, ORANGE, GREEN, PINK, SKY)
"""Colours of versions in turn: more than are live at once in the usual window."""


def figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def plain(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Style axes: two spines, small ticks, and a title on the left that states what is to be seen."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)


def headline(fig: Figure, text: str, below: str = "") -> None:
    """Put the finding above everything; `below` says what is shown."""
    fig.suptitle(text, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
    if below:
        fig.text(0.01, 0.0, below, fontsize=9, color=GREY, va="top")


def save(fig: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, bbox_inches="tight", pad_inches=0.15)
    return path
