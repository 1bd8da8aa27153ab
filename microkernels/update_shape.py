"""What a micro-kernel computes, and how one use of it walks through A and k.

A micro-kernel updates one block of C that stays in vector registers:

    C[i, j] += sum_k A(i, k) * B[k, j]        0 <= i < mr, 0 <= j < nr, 0 <= k < steps * ks

B is a packed panel (steps, nr * ks), read with unit stride: ks elements of a column side by side,
where one multiply-add takes so many (`products`); ks elements of A, too. A is read where it lies,
through one of three views, because a broadcast (x86) or a short vector load (NEON) takes any
address:

    panel    A[k, i]                          packed micro-panel of BLIS (GEMM paper, figure 3)
    rows     A[ih * sh, iw * sw, k]           pixels of an NCHWc image, or rows of a matrix (mh = 1)
    window   A[ih * sh, iw * sw + k * dw]     overlapping windows of an image row: of NCHW (first
                                              layer), or of all channels, in groups of k (dw = 1)

The rows of the block are mh x mw (mr = mh * mw), so that narrow images fill a whole block too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class UpdateShape:
    """How one use of a micro-kernel walks through A and k.

    Parameters
    ----------
    mh, mw : int
        Rows of the block as image rows and columns; mh * mw is the kernel's mr.
    steps : int
        k steps of one call, of ks elements each.
    unroll : int
        k steps per iteration of the emitted loop.
    view : str
        "rows", "window" or "panel".
    sh, sw, dw : int
        Strides of the image rows and columns and step of k (`window`), in elements.
    in_memory : bool
        C lies in memory rather than in a register buffer: the call sums in registers and adds
        the sums to C at its end (LLVM would load and store C at every step of k).
    ks : int
        Elements of k in a step, those of the kernel.
    in_order : bool
        The core issues in order: k loops on panels come in the order that such a core needs,
        where there is one (`neon_in_order`).
    streams : bool
        Few calls share a panel of B, which comes from far away: a loop of its own
        (`Microkernel.tiles`) asks for it in advance.
    """

    mh: int
    mw: int
    steps: int
    unroll: int = 4
    view: str = "rows"
    sh: int = 1
    sw: int = 1
    dw: int = 1
    in_memory: bool = False
    ks: int = 1
    in_order: bool = False
    streams: bool = False

    @property
    def a_shape(self) -> tuple[int, ...]:
        """Extent of A that one call reads; rows of a single k step have no axis for it."""
        if self.view == "panel":
            return (self.steps, self.mh * self.mw * self.ks)
        rows = (self.mh - 1) * self.sh + 1
        cols = (self.mw - 1) * self.sw + 1
        if self.view == "window":
            return (rows, cols + (self.steps * self.ks - 1) * self.dw)
        depth = self.steps * self.ks
        return (rows, cols) if depth == 1 else (rows, cols, depth)

    def a_index(self, ih: Any, iw: Any, k: Any, s: Any = 0) -> tuple[Any, ...]:
        """Index of element s of step k of row i in `a_shape`."""
        if self.view == "panel":
            return (k, (ih * self.mw + iw) * self.ks + s)
        if self.view == "window":
            return (ih * self.sh, iw * self.sw + (k * self.ks + s) * self.dw)
        at = (ih * self.sh, iw * self.sw)
        return at if self.steps * self.ks == 1 else (*at, k * self.ks + s)
