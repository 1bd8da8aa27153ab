"""Tensors whose elements depend on nothing but the side of a constant on which a number lies.

`Sign`, `Where(x >= 0, 1, -1)`, `Cast(Greater(x, 0)) * 2 - 1` and chains of such: four numbers say
what becomes of x below, equal to and above the constant, and of what is no number. They are
computed with NumPy, operator by operator, as the graph says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.binary.operators import BOTH, COMPARISONS
from tvm_blislike.tvm_seams import constant_array, dtype_name, is_constant, op_name, static_shape

_BEGIN = {
    "relax.less": ("below", "above"),
    "relax.less_equal": ("up_to", "from"),
    "relax.greater": ("above", "below"),
    "relax.greater_equal": ("from", "up_to"),
}
_OF_TWO: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
}
_OF_ONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relax.sign": np.sign,
    "relax.negative": np.negative,
    "relax.logical_not": np.logical_not,
}
_MOVES = frozenset(
    f"relax.{name}" for name in "reshape permute_dims squeeze expand_dims flatten".split()
)


@dataclass(frozen=True)
class Plane:
    """A comparison whose bit tells one of two signs.

    Parameters
    ----------
    comparison : str
        A name of `operators.COMPARISONS`.
    sign : int
        1 or -1, what the bit stands for; the other one is its absence.
    """

    comparison: str
    sign: int


@dataclass(frozen=True)
class Signs:
    """What a tensor is.

    Parameters
    ----------
    x : relax.Expr
        The number that is compared, of the graph before this pass.
    other : numpy.ndarray
        The constant, which broadcasts against x.
    values : numpy.ndarray
        Four: of x below, equal, above, no number.
    moves : tuple of relax.Call
        Where the elements were moved since, first to last.
    """

    x: relax.Expr
    other: np.ndarray
    values: np.ndarray
    moves: tuple[relax.Call, ...] = ()

    @property
    def size(self) -> float:
        """The magnitude of its elements, or of those that are not 0."""
        return float(abs(self.values[0]))

    @property
    def planes(self) -> tuple[Plane, ...]:
        """What it is the sum of, times half of its size for two and times its size for one."""
        below, equal, above = (float(value) for value in self.values[:3])
        if self.values.dtype.kind != "f" or below == 0 or below != -above:
            return ()
        if equal == 0 and np.isnan(self.values[3]):
            sign = 1 if above > 0 else -1
            return Plane("below", -sign), Plane("above", sign)
        found = (name for name in COMPARISONS if self._is_by(name))
        name = next(found, None)
        if name is None:
            return ()
        held = COMPARISONS[name].index(True) if name != "from" else 2
        return (Plane(name, 1 if self.values[held] > 0 else -1),)

    @property
    def codes(self) -> str:
        """Name of the codes that hold the bits of its planes."""
        planes = self.planes
        return BOTH if len(planes) > 1 else planes[0].comparison

    def _is_by(self, name: str) -> bool:
        """Whether a comparison tells the two values apart; what is no number may be either."""
        holds = np.array(COMPARISONS[name])
        known = ~np.isnan(self.values)
        one, two = self.values[holds & known], self.values[~holds & known]
        return len({*one}) == len({*two}) == 1 and one[0] == -two[0]


def begun(call: relax.Call) -> Signs | None:
    """Return what a call makes of a number by a comparison with a constant, None for others."""
    name = op_name(call)
    if name == "relax.sign" and dtype_name(call) == "float32":
        return Signs(call.args[0], np.float32(0), np.array([-1, 0, 1, np.nan], np.float32))
    if name not in _BEGIN:
        return None
    (x, other), comparisons = call.args, _BEGIN[name]
    if is_constant(x):
        x, other, comparisons = other, x, comparisons[::-1]
    if is_constant(x) or not is_constant(other) or dtype_name(x) != "float32":
        return None
    array = constant_array(other)
    if static_shape(x) is None or static_shape(x) != static_shape(call):
        return None
    if array.dtype != np.float32 or np.isnan(array).any():
        return None
    return Signs(x, array, np.array(COMPARISONS[comparisons[0]]))


def continued(call: relax.Call, operands: list[Signs | np.ndarray | None]) -> Signs | None:
    """Return what a call makes of such a tensor and of constants, None where it is no such one.

    Parameters
    ----------
    operands : list
        One for each argument: the tensor, a constant, or None.
    """
    name = op_name(call)
    signs = next((o for o in operands if isinstance(o, Signs)), None)
    if signs is None or static_shape(call) is None:
        return None
    if name in _MOVES:
        return replace(signs, moves=(*signs.moves, call))
    if static_shape(call) != static_shape(call.args[operands.index(signs)]):
        return None
    numbers = [signs.values if o is signs else _one_number(o) for o in operands]
    if any(number is None for number in numbers):
        return None
    with np.errstate(all="ignore"):
        made = _made(name, call, numbers)
    return None if made is None else replace(signs, values=made.astype(dtype_name(call)))


def _made(name: str, call: relax.Call, numbers: list[np.ndarray]) -> np.ndarray | None:
    if name in _OF_ONE:
        return _OF_ONE[name](*numbers)
    if name in _OF_TWO:
        return _OF_TWO[name](*numbers)
    if name == "relax.where":
        return np.where(*numbers)
    # Of what is no number only a cast to floats is known.
    is_float = dtype_name(call).startswith("float") or not np.isnan(numbers[0]).any()
    return numbers[0] if name == "relax.astype" and is_float else None


def _one_number(operand: Signs | np.ndarray | None) -> np.ndarray | None:
    """Return the number that all elements of a constant are."""
    if not isinstance(operand, np.ndarray) or not operand.size:
        return None
    first = operand.reshape(-1)[0]
    return first if np.all(operand == first) else None


def moved(call: relax.Call, source: relax.Expr) -> relax.Call:
    """Return a move of codes instead of elements."""
    if op_name(call) == "relax.permute_dims":
        return op.permute_dims(source, call.attrs.axes)
    return op.reshape(source, static_shape(call))
