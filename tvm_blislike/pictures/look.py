"""How pictures look: light and dark, wide and narrow, one colour and marker for each series."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from tvm_blislike.schedules import all_implementations

# Colours that most colour-blind people tell apart (Okabe and Ito), lighter on dark paper.
_ON_LIGHT = (
    *("#0072b2", "#d55e00", "#009e73", "#b8860b", "#a64d79", "#3f7f93", "#7a4a2b", "#4f5bd5"),
    *("#6b7a00", "#b5303f", "#8247b5", "#2c7a1f", "#555555"),
)
_ON_DARK = (
    *("#56b4e9", "#ff8c42", "#2fc79a", "#f0c541", "#e292bd", "#8fd0e0", "#c49a7a", "#a3aaf7"),
    *("#bccb45", "#ff8a94", "#c79bff", "#8fdc7f", "#c0c0c0"),
)
_MARKERS = "osD^vPX>h*p8<"
# An algorithm or engine looks the same on every page.
_ENGINES = ("blislike", "onnxruntime", "openvino", "ncnn", "tvm", "untuned")
_SETTINGS = {
    # Text instead of paths, which would treble the page; other fonts are rarely wider.
    "svg.fonttype": "none",
    "svg.hashsalt": "tvm-blislike",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Look:
    """One way to draw a picture.

    Parameters
    ----------
    is_dark : bool
        Light ink, for dark paper.
    is_narrow : bool
        For a phone: everything in one column.
    """

    is_dark: bool = False
    is_narrow: bool = False

    @property
    def width(self) -> float:
        """Inches: at 96 per inch what the page shows without scaling."""
        return 3.75 if self.is_narrow else 9.6

    @property
    def paper(self) -> str:
        """Colour of the background."""
        return "#171b21" if self.is_dark else "#ffffff"

    @property
    def ink(self) -> str:
        """Colour of text."""
        return "#e6e9ee" if self.is_dark else "#1c2128"

    @property
    def muted(self) -> str:
        """Colour of axes and of what matters less."""
        return "#9aa4b2" if self.is_dark else "#5b6572"

    @property
    def grid(self) -> str:
        """Colour of grid lines."""
        return "#2c333d" if self.is_dark else "#e3e7ec"

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let matplotlib draw like this inside the block."""
        size = 7.5 if self.is_narrow else 9.0
        colours = {
            **dict.fromkeys(("text.color", "axes.labelcolor", "legend.labelcolor"), self.ink),
            **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), self.muted),
            **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), self.ink),
            **dict.fromkeys(("figure.facecolor", "axes.facecolor"), self.paper),
            "grid.color": self.grid,
        }
        sizes = {
            "font.size": size,
            "axes.labelsize": size,
            "axes.titlesize": size,
            "legend.fontsize": size,
            "xtick.labelsize": size,
            "ytick.labelsize": size,
        }
        with matplotlib.rc_context({**_SETTINGS, **colours, **sizes}):
            yield

    def colour(self, name: str) -> str:
        """Return the colour of an algorithm or engine."""
        return (_ON_DARK if self.is_dark else _ON_LIGHT)[_place(name)]

    def legend(
        self,
        figure: Figure,
        names: Iterable[str],
        more: Mapping[str, Mapping[str, Any]] = {},
        shape: str | None = None,
    ) -> None:
        """Explain the markers above the axes.

        Parameters
        ----------
        figure : Figure
            The figure.
        names : iterable of str
            Algorithms or engines.
        more : mapping
            Further entries, by label.
        shape : str, optional
            One marker instead of each name's own, where colours alone tell them apart.
        """
        handles = [
            Line2D([], [], ls="", marker=shape or marker(name), color=self.colour(name), label=name)
            for name in names
        ]
        handles += [Line2D([], [], label=label, **style) for label, style in more.items()]
        columns = 1 if self.is_narrow else len(handles)
        figure.legend(handles=handles, loc="outside upper left", ncols=min(columns, 5))


def marker(name: str) -> str:
    """Return the marker of an algorithm or engine."""
    return _MARKERS[_place(name)]


def spread_ticks(axis: Axes, which: str) -> None:
    """Label a logarithmic axis ("x" or "y") with plain numbers."""
    part = getattr(axis, f"{which}axis")
    part.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    part.set_major_formatter(lambda value, _: f"{value:g}")
    part.set_minor_formatter(NullFormatter())


def _place(name: str) -> int:
    """Return an index of colours and markers; algorithms of other packages share the last."""
    algorithms = [implementation.name for implementation in all_implementations()]
    found = [names.index(name) for names in (_ENGINES, algorithms) if name in names]
    return min([*found, len(_MARKERS) - 1])
