"""What a kernel that was made for a canvas knows of images that cover a part of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

# What lies beyond an image: zeros, the lowest number, or the pixels at its edge once more.
ZERO, LOWEST, EDGE = "zero", "lowest", "edge"


@dataclass(frozen=True)
class Margin:
    """What lies beyond an image because somebody reads it.

    Parameters
    ----------
    reach : dict
        Open axes to how many rows or columns of it.
    value : str
        `ZERO`, `LOWEST` or `EDGE`.
    """

    reach: dict[int, int]
    value: str = ZERO

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Margin:
        """Return what `dataclasses.asdict` wrote, to JSON and back."""
        reach = {int(axis): count for axis, count in fields["reach"].items()}
        return Margin(reach, fields["value"])


@dataclass(frozen=True)
class OnCanvas:
    """The open axes of a kernel's parameters.

    Parameters
    ----------
    sizes : int
        Which parameter holds all extents of the model, in 32 bits.
    axes : tuple of dict
        For each parameter, an axis to the place of its extent among those.
    margins : tuple
        For each parameter, its `Margin`; None for inputs, and for outputs without one.
    near : int
        A tile that begins so few rows beyond an image is computed though it gives nothing: patches
        begin before their outputs do, and copies have the padding.
    """

    sizes: int
    axes: tuple[dict[int, int], ...]
    margins: tuple[Margin | None, ...]
    near: int

    def to_json(self) -> str:
        """Return it as text, for an attribute of a function."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> OnCanvas:
        """Return what `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        axes = tuple({int(axis): place for axis, place in each.items()} for each in fields["axes"])
        margins = tuple(each and Margin.from_dict(each) for each in fields["margins"])
        return OnCanvas(fields["sizes"], axes, margins, fields["near"])
