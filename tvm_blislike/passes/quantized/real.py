"""What a tensor of floats is in terms of integers, while it is not yet computed.

A real number is a sum of terms `scale * (x - zero)` and an offset, within bounds:

    dequantized        one term: 8-bit x
    behind a layer     one term: 32-bit x, scale and zero by channel; zero holds what the zero
                       point of the data adds to every sum, and the bias
    residual addition  two terms
    any other float    one term: the float itself, scale 1, zero 0
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from tvm import relax

from tvm_blislike.tvm_seams import dtype_name

EIGHT_BITS = ("uint8", "int8")
# Types in which integers of 8 bits may lie in memory.
IN_MEMORY = (*EIGHT_BITS, "int16")


@dataclass(frozen=True)
class Term:
    """`scale * (x - zero)`.

    Parameters
    ----------
    x : relax.Var
        Integers of 8 bits in memory, of 32 bits, or float32.
    scale : numpy.ndarray
        float64, broadcasts against x.
    zero : numpy.ndarray
        int64, broadcasts against x.
    precise : relax.Var, optional
        `x - zero` as float32, from before x was stored in 8 bits: for the only reader of it, which
        is computed in the same kernel.
    """

    x: relax.Var
    scale: np.ndarray
    zero: np.ndarray
    precise: relax.Var | None = None

    @property
    def is_steps(self) -> bool:
        """Whether these are 8-bit integers with one scale and one zero point."""
        return dtype_name(self.x) in IN_MEMORY and self.scale.size == self.zero.size == 1

    @property
    def is_plain(self) -> bool:
        """Whether this is x itself."""
        return dtype_name(self.x) == "float32" and np.all(self.scale == 1) and not self.zero.any()


@dataclass(frozen=True)
class Real:
    """`sum of terms + offset`, at least `low` and at most `high`."""

    terms: tuple[Term, ...]
    offset: np.ndarray = field(default_factory=lambda: np.zeros(()))
    low: float = -np.inf
    high: float = np.inf

    @staticmethod
    def of(x: relax.Var, scale: np.ndarray | float = 1.0, zero: np.ndarray | int = 0) -> Real:
        """Return the real number of one term."""
        return Real((Term(x, np.asarray(scale, np.float64), np.asarray(zero, np.int64)),))

    @property
    def is_bounded(self) -> bool:
        """Whether bounds may change the sum."""
        return self.low > -np.inf or self.high < np.inf

    @property
    def term(self) -> Term | None:
        """The only term, None where there is more to it than that."""
        only = len(self.terms) == 1 and not self.offset.any() and not self.is_bounded
        return self.terms[0] if only else None

    @property
    def steps(self) -> Term | None:
        """The only term, if it is 8-bit integers with one scale and one zero point."""
        term = self.term
        return term if term is not None and term.is_steps else None

    def with_precise(self, precise: relax.Var | None) -> Real:
        """Return one term with its integers, without their zero point, as float32."""
        return replace(self, terms=(replace(self.terms[0], precise=precise),))

    def plus(self, other: Real) -> Real:
        """Return the sum of two that have no bounds."""
        if any(term.precise is not None for term in self.terms):  # a kernel is of one layer
            other = replace(other, terms=tuple(replace(t, precise=None) for t in other.terms))
        return Real((*self.terms, *other.terms), self.offset + other.offset)

    def shifted(self, shift: np.ndarray) -> Real:
        """Return the sum with a constant; without bounds."""
        return replace(self, offset=self.offset + shift)

    def times(self, factor: np.ndarray) -> Real:
        """Return the product with a constant; without bounds."""
        terms = tuple(replace(t, scale=t.scale * factor) for t in self.terms)
        return Real(terms, self.offset * factor)

    def clipped(self, low: float, high: float) -> Real:
        """Return the number within narrower bounds."""
        low, high = max(low, self.low), min(high, self.high)
        return replace(self, low=min(low, high), high=high)


@dataclass(frozen=True)
class Known:
    """`scale * (x - zero)` of constants, such as dequantized weights.

    Parameters
    ----------
    x : numpy.ndarray
        Integers.
    scale : numpy.ndarray
        float32, as many axes as x.
    zero : numpy.ndarray
        int64, as many axes as x.
    """

    x: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @property
    def centered(self) -> np.ndarray:
        """The integers without their zero point, int64."""
        return self.x.astype(np.int64) - self.zero

    @property
    def values(self) -> np.ndarray:
        """What it stands for, float32."""
        return self.centered.astype(np.float32) * self.scale

    def permuted(self, axes: tuple[int, ...] | None) -> Known:
        """Return it with its axes in another order."""
        return Known(*(array.transpose(axes) for array in (self.x, self.scale, self.zero)))

    def reshaped(self, shape: tuple[int, ...]) -> Known:
        """Return it with another shape."""
        whole = (np.broadcast_to(array, self.x.shape) for array in (self.scale, self.zero))
        scale, zero = (_narrowed(array.reshape(shape)) for array in whole)
        return Known(self.x.reshape(shape), scale, zero)

    def scale_along(self, axis: int) -> np.ndarray | None:
        """Return the scales along an axis, one or as many as there are; None if others differ."""
        sizes = [size for at, size in enumerate(self.scale.shape) if at != axis % self.x.ndim]
        return self.scale.reshape(-1) if all(size == 1 for size in sizes) else None


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Return an array of size 1 along every axis along which nothing changes."""
    for axis in range(array.ndim):
        first = array.take([0], axis) if array.shape[axis] else array
        if np.array_equal(np.broadcast_to(first, array.shape), array):
            array = first
    return array
