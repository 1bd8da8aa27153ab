"""What loops are called: directives on loops around them look for these names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_blislike.model.directive import Directive

# What a loop may be called.
NAMES = {
    "mh": "rows of the image in a block of C",
    "mw": "columns of the image, or rows of a matrix, in a block of C",
    "nr": "vectors of a row of a block of C",
    "lanes": "elements of a row of a block of C",
    "sweep": "elements of a block that is repeated with narrower vectors where it is cut",
    "blocks": "blocks of channels in a tile",
    "ir": "tiles of a block along m",
    "jr": "tiles of a block along n",
    "it": "tiles of filters in a block of them",
    "yi": "rows of tiles in a slab of the image",
    "ry": "rows of a convolution's kernel",
    "rx": "columns of a convolution's kernel",
    "phase_h": "phases of the image along its height: rows 0, s, 2 s, ... of stride s are one",
    "phase_w": "phases of the image along its width",
    "k": "iterations of a micro-kernel's loop",
    "ki": "steps of k in one iteration",
    "column": "blocks in a row of the image",
    "tile_row": "rows of Winograd's tiles in a block of them",
    "tile_column": "tiles in a row of a block of Winograd's tiles",
    "tile_group": "calls of a micro-kernel for the tiles of a block",
    "call": "calls of a micro-kernel: the innermost loop around it",
    "ring": "rows of the stage that fills the buffer of a `Ring`",
}


def _known_name(named: Any, _loop: tirx.For) -> str:
    return "" if named.name in NAMES else f"no such name; known: {', '.join(NAMES)}"


@dataclass(frozen=True)
class Named(Directive):
    """Directives on loops around this one find it as one of `NAMES`."""

    name: str
    rules = (_known_name,)


def inside(loop: tirx.For, kind: type) -> list[Any]:
    """Return all nodes of a kind inside a loop, outer ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (kind, found.append), order="pre")
    return found


def names_inside(loop: tirx.For) -> set[str]:
    """Return what the loops inside a loop are called."""
    return {named.name for each in inside(loop, tirx.For) if (named := Named.of(each))}
