"""Powers and remainders of the types and signs that TVM computes otherwise, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx_rewrites.site import Site


def power(site: Site) -> Sequence[str] | None:
    """Write `Pow` with one floating point type: TVM takes no other.

    Integers are computed in float64, as ONNX Runtime does it.
    """
    base, exponent = (site.dtype_if_known(index) for index in (0, 1))
    if base is None or exponent is None or (base == exponent and base.kind != "i"):
        return None
    if base.kind not in "iu":
        return [site.add("Pow", site.node.input[0], site.cast(site.node.input[1], base))]
    double = np.dtype("float64")
    operands = (site.cast(name, double) for name in site.node.input)
    return [site.cast(site.add("Pow", *operands), base)]


def remainder(site: Site) -> Sequence[str] | None:
    """Write `Mod` of floating point numbers with the sign of the divisor.

    TVM computes a - floor(a / b) * b, which is no number where b is infinite.
    """
    dtype = site.dtype_if_known(0)
    if dtype is None or dtype.kind in "iu" or site.attribute("fmod", 0):
        return None
    divisor = site.node.input[1]
    rest = site.add("Mod", *site.node.input, fmod=1)
    zero = site.constant(np.array(0, dtype))
    differ = site.add("Xor", site.add("Less", rest, zero), site.add("Less", divisor, zero))
    nothing = site.add("Equal", rest, zero)
    shifted = site.add("Where", differ, site.add("Add", rest, divisor), rest)
    return [site.add("Where", nothing, rest, shifted)]
