"""Layers whose small results count as much as large ones.

Products by Winograd's and Strassen's algorithms are sums of others: they err by what the largest of
their operands rounds to, in a row that is zero or quiet beside others as well. That is no more than
the rounding of the whole as long as results are added up, but a logarithm and a quotient tell one
small number from another: a key of a padded token, zero, divided by its norm (Swin V2), would
become any vector of length one, and the logarithm of silence (a speech model's spectrum) that of
noise. What such operators read is followed back to the layers that it comes from. Sums of signs are
whole numbers, as binary networks compare them with thresholds: they stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tvm import relax

from tvm_blislike.model.marks import VOLUME_CONVOLUTION
from tvm_blislike.tvm_seams import bindings, constant_array, is_constant, op_name

# Those that have something small of something small, in each of their operands.
_KEEPING = {
    f"relax.{name}"
    for name in (
        "nn.relu nn.leakyrelu abs negative sqrt square clip astype sum mean max reshape "
        "permute_dims strided_slice squeeze expand_dims broadcast_to flatten concat split "
        "layout_transform nn.pad nn.max_pool2d nn.avg_pool2d multiply maximum minimum where "
        "matmul nn.conv1d nn.conv2d"
    ).split()
} | {VOLUME_CONVOLUTION}
# In the first of them.
_OF_FIRST = {"relax.divide", "relax.power", "relax.take"}
# Sums with a constant have it where the other term is small.
_SUMS = {"relax.add", "relax.subtract"}
_LAYERS = {"relax.matmul", "relax.nn.conv1d", "relax.nn.conv2d"}
_TELLING = {"relax.log", "relax.rsqrt", "relax.equal", "relax.not_equal", "relax.sign"}
# Signs in other places.
_MOVED = {"relax.nn.pad", "relax.reshape", "relax.permute_dims"}
# Constants up to this one keep a quotient finite and are no more than small.
_SMALL = 1e-9


def layers_of_small_results(func: relax.Function) -> frozenset[relax.Var]:
    """Return the results of products and convolutions that an operator tells apart when small.

    And those of signs, which are whole numbers.
    """
    values = {binding.var: binding.value for binding in bindings(func)}
    found: set[relax.Var] = set()
    left = [var for value in values.values() for var in _told_apart(value)]
    left += [var for var, value in values.items() if _is_of_signs(value, values)]
    while left:
        var = left.pop()
        if var in found or var not in values:
            continue
        found.add(var)
        left += _small_operands(values[var])
    return frozenset(var for var in found if op_name(values[var]) in _LAYERS)


def _is_of_signs(value: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> bool:
    """Whether a layer sums up signs."""
    if op_name(value) not in _LAYERS:
        return False
    data = values.get(value.args[0])
    while data is not None and op_name(data) in _MOVED:
        data = values.get(data.args[0])
    return data is not None and op_name(data) == "relax.sign"


def _told_apart(value: relax.Expr) -> Iterator[relax.Expr]:
    """Yield the operands whose small values an operator tells apart."""
    name = op_name(value)
    if name == "relax.divide":
        yield from _variables(value.args[1:])
    elif name == "relax.power":
        if is_constant(value.args[1]) and np.any(constant_array(value.args[1]) < 0):
            yield from _variables(value.args[:1])
    elif name in _TELLING:
        yield from _variables(value.args)


def _small_operands(value: relax.Expr) -> Iterator[relax.Expr]:
    """Yield the operands of which small values make small results."""
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, relax.TupleGetItem):
        yield from _variables([value.tuple_value])
    elif isinstance(value, relax.Tuple):
        yield from _variables(value.fields)
    elif op_name(value) in _OF_FIRST:
        yield from _variables(value.args[:1])
    elif op_name(value) in _SUMS:
        constants = [constant_array(arg) for arg in value.args if is_constant(arg)]
        if all(np.any(np.abs(array) <= _SMALL) for array in constants):
            yield from _variables(value.args)
    elif op_name(value) in _KEEPING:
        yield from _variables(value.args)


def _variables(args: Iterable[relax.Expr]) -> Iterator[relax.Expr]:
    for arg in args:
        if isinstance(arg, relax.Var):
            yield arg
        elif isinstance(arg, relax.Tuple):
            yield from _variables(arg.fields)
