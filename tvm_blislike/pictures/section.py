"""A part of the page: what it shows, its pictures, and the table of the data behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from tvm_blislike.pictures.findings import Layer
from tvm_blislike.pictures.look import Look

Row = tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """One picture.

    Parameters
    ----------
    name : str
        Of its file, without the extension.
    alt : str
        What it shows, for those who do not see it.
    draw : callable
        Draws it in a given look.
    """

    name: str
    alt: str
    draw: Callable[[Look], Figure]


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Parameters
    ----------
    name : str
        Anchor in the page.
    title : str
        Heading.
    text : str
        What is shown and how to read it.
    pictures : tuple of Picture
        The first is shown, the others are folded.
    headings, rows
        The data as a table.
    note : str
        What is missing, such as layers without records; empty when nothing is.
    """

    name: str
    title: str
    text: str
    pictures: tuple[Picture, ...]
    headings: Row
    rows: tuple[Row, ...]
    note: str = ""


def message(name: str, text: str) -> Picture:
    """Return a picture that says why there is nothing to draw."""

    def draw(look: Look) -> Figure:
        figure = Figure(figsize=(look.width, 1.0))
        figure.text(0.5, 0.5, text, ha="center", va="center", wrap=True, color=look.muted)
        return figure

    return Picture(name, text, draw)


def sheets(
    name: str,
    layers: Sequence[Layer],
    size: int,
    alt: Callable[[Sequence[Layer]], str],
    draw: Callable[[Look, Sequence[Layer]], Figure],
) -> tuple[Picture, ...]:
    """Return pictures of at most `size` layers each: NAME, NAME-2, NAME-3, ..."""
    parts = [layers[start : start + size] for start in range(0, len(layers), size)]
    return tuple(
        Picture(
            name if number == 1 else f"{name}-{number}",
            alt(part),
            lambda look, part=part: draw(look, part),
        )
        for number, part in enumerate(parts, 1)
    )


def few(found: int, layers: Sequence[Layer], what: str) -> str:
    """Return a note when only some of the layers can be shown, else nothing."""
    return "" if found == len(layers) else f"{found} of {len(layers)} layers {what}."
