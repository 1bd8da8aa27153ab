"""What an attention computes: softmax(scale * Q K^T, masked) V for each of a batch of matrices.

A. Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm_blislike.model.types import Types
from tvm_blislike.model.views import View


@dataclass(frozen=True)
class Mask:
    """What is done to the scores in front of the softmax.

    Parameters
    ----------
    view : View or None
        Floats (batch, rows, columns) of a tensor; None: scores are kept up to a diagonal.
    replaces : bool
        Those that are not 0 take the place of scores; otherwise all are added.
    diagonal : int
        Without a view: row i keeps columns 0 to i + diagonal.
    fill : float
        Without a view: what takes the place of other scores.
    """

    view: View | None = None
    replaces: bool = False
    diagonal: int = 0
    fill: float = -math.inf


@dataclass(frozen=True)
class Attention:
    """One attention, its heads and batch counted by one axis.

    Parameters
    ----------
    q, k, v, out : View
        (batch, rows, depth), (batch, columns, depth), (batch, columns, width) and
        (batch, rows, width), where they lie; batch alone may be an axis of several parts.
    scale : float
        Of the products, before any mask.
    masks : tuple of Mask
        In the order in which they are applied.
    guarded : bool
        A row of which nothing is kept becomes zeros; otherwise no numbers (NaN).
    factors : str
        Data type of the operands of both products, to which they are rounded. Tensors, sums and the
        softmax are float32.
    """

    q: View
    k: View
    v: View
    out: View
    scale: float = 1.0
    masks: tuple[Mask, ...] = ()
    guarded: bool = False
    factors: str = "float32"

    def to_json(self) -> str:
        """Return the text that `from_data` reads, as data of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Attention:
        """Return the attention of data; its numbers may be expressions of TIR."""
        views = (View.from_data(data[name]) for name in ("q", "k", "v", "out"))
        masks = (
            Mask(**{**each, "view": each["view"] and View.from_data(each["view"])})
            for each in data["masks"]
        )
        return Attention(*views, data["scale"], tuple(masks), data["guarded"], data["factors"])

    @property
    def types(self) -> Types:
        """Types of both products."""
        return Types(self.factors, self.factors)

    @property
    def batch(self) -> int:
        """Independent attentions: images or sequences times heads."""
        return self.q.shape[0]

    @property
    def rows(self) -> int:
        """Queries."""
        return self.q.shape[1]

    @property
    def columns(self) -> int:
        """Keys."""
        return self.k.shape[1]

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return self.q.shape[2]

    @property
    def width(self) -> int:
        """Elements of a value."""
        return self.v.shape[2]

    @property
    def macs(self) -> int:
        """Multiply-adds of both products."""
        return self.batch * self.rows * self.columns * (self.depth + self.width)

    @property
    def diagonal(self) -> int | None:
        """Columns beyond i + diagonal that row i may leave out, None where it needs all.

        Where a finite number takes the place of scores, a row that keeps nothing, or of which
        another mask leaves nothing, weighs what was masked.
        """
        for mask in self.masks:
            is_alone = len(self.masks) == 1 and mask.diagonal >= 0 and mask.fill < -1e30
            if mask.view is None and (mask.fill == -math.inf or is_alone):
                return mask.diagonal
        return None

    def __str__(self) -> str:
        masks = f", {len(self.masks)} masks" if self.masks else ""
        rounded = "" if self.factors == "float32" else f", products of {self.factors}"
        return (
            f"attention {self.batch} x ({self.rows} x {self.columns}),"
            f" {self.depth} deep, {self.width} wide{masks}{rounded}"
        )
