"""What the next layer cannot feel of a layer becomes zero.

Trained models hold units that died: weight decay shrinks their weights, and the weights that read
them, until they are denormal (1 % of those of PP-OCRv4's reader). x86 cores take some 100 cycles
for each operation that reads or yields a denormal number.

What becomes zero can matter for no finite input. Let x be the input of two layers, the first with
an activation |f(t)| <= |t|:

    u[i] = f(sum over j of w1[i, j] * x[j] + b1[i])
    y[o] =   sum over i of w2[o, i] * u[i] + b2[o]

All |x[j]| are below 2 ** 128, so |u[i]| is at most U[i] = 2 ** 128 * sum of |w1[i, j]| + |b1[i]|,
doubled here for rounding; a unit that could overflow has no bound. A weight w2[o, i] becomes zero
where |w2[o, i]| * U[i] is at most 2 ** -40 * |b2[o]| / (weights of o). All of an output's together
then add less than 2 ** -40 * |b2[o]|: as if its bias were another by 1 / 65,536 of its last bit.
A unit that only zeros read afterwards gets weights of zero itself.

Nothing else will do. A weight of 1e-40 beside others of 1 is felt where these meet zeros, and the
product with an activation of 1e38 is 0.01. In an addition of a constant the other operand may be
zero or infinite. So weights without such a bound stay, and so do all constants of other additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
    use_counts,
)

LAYERS = ("relax.matmul", "relax.nn.conv2d")
# Activations of |f(t)| <= |t|.
_BOUNDED = frozenset(f"relax.{name}" for name in ("nn.relu", "nn.silu", "nn.gelu", "tanh", "abs"))
# Smaller weights lead to denormal products with activations around 1e-8.
_TINY = np.float32(2.0**-100)
# Part of an output's bias that all it loses may add up to.
_LOST = 2.0**-40
_LARGEST = float(np.finfo(np.float32).max)
# Elements that are looked at together.
_BLOCK = 1 << 18


@mutator
class WithoutDenormals(PyExprMutator):
    """Rewriter of the weights and biases of a function's layers, float32 only."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self.flushed = _flushed(func)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind a variable to its call with the constants that were flushed."""
        array = self.flushed.get(binding.var)
        if array is not None:
            call = binding.value
            args = [constant(array, "float32") if is_constant(arg) else arg for arg in call.args]
            value = relax.Call(call.op, args, call.attrs, call.ty_args)
            binding = relax.VarBinding(binding.var, value)
        super().visit_var_binding_(binding)


@dataclass
class _Layer:
    """A convolution or matrix product with constant weights, and the addition of a bias behind it.

    Parameters
    ----------
    sum, result : relax.Var
        Values before and after the addition; one and the same without a bias.
    data : relax.Expr
        The input.
    weights : numpy.ndarray
        As the call has them; replaced where some become zero.
    groups : int
        Channel groups.
    bias : numpy.ndarray or None
        As the addition has it, one number per output; replaced where some become zero.
    """

    sum: relax.Var
    result: relax.Var
    data: relax.Expr
    weights: np.ndarray
    groups: int = 1
    bias: np.ndarray | None = None

    @property
    def by_output(self) -> np.ndarray:
        """The weights as (groups, outputs of a group, inputs of a group, taps), a view."""
        return self._by_output(self.weights)

    def _by_output(self, array: np.ndarray) -> np.ndarray:
        if array.ndim == 2:
            return array.T[None, :, :, None]
        return array.reshape(self.groups, -1, array.shape[1], array.shape[2] * array.shape[3])

    def bounds(self) -> np.ndarray:
        """Return U[i], the largest magnitude of each unit; infinite where it could overflow."""
        sums = np.abs(self.by_output).sum(axis=(2, 3), dtype=np.float64).reshape(-1)
        bias = 0.0 if self.bias is None else np.abs(self.bias.reshape(-1).astype(np.float64))
        bounds = 2 * (2.0**128 * sums + bias)
        return np.where(bounds <= _LARGEST, bounds, np.inf)

    def forget(self, bounds: np.ndarray) -> None:
        """Set weights to zero that no output can feel, given the bounds of the inputs."""
        groups, outputs, inputs, taps = self.by_output.shape
        bias = np.abs(self.bias.reshape(groups, outputs, 1, 1).astype(np.float64))
        least = np.where(np.isfinite(bias), _LOST * bias / (inputs * taps), 0.0)
        units = bounds.reshape(groups, 1, inputs, 1)
        new = self.weights.copy()
        view = self._by_output(new)
        with np.errstate(invalid="ignore"):  # 0 * inf is no less than anything
            lost = np.abs(view) * units <= least
        # A unit that nothing feels at all can be zero itself, so all of its weights go.
        view[lost & (_is_tiny(view) | lost.all(axis=(1, 3), keepdims=True))] = 0
        self.weights = new

    def unread(self) -> np.ndarray:
        """Return which inputs have weights of zero alone."""
        return ~self.by_output.any(axis=(1, 3)).reshape(-1)

    def kill(self, units: np.ndarray) -> None:
        """Set the weights and biases of some outputs to zero."""
        new = self.weights.copy()
        self._by_output(new)[units.reshape(self.groups, -1)] = 0
        self.weights = new
        if self.bias is not None:
            self.bias = np.where(units.reshape(self.bias.shape), np.float32(0), self.bias)


def _flushed(func: relax.Function) -> dict[relax.Var, np.ndarray]:
    """Return the constant operands that change, by the result of their call."""
    uses = use_counts(func)
    values = {binding.var: binding.value for binding in bindings(func)}
    layers = {layer.result: layer for layer in _layers(func, uses)}
    given = {var: (layer.weights, layer.bias) for var, layer in layers.items()}
    for layer in layers.values():
        if layer.bias is not None and _has_tiny(layer.weights):
            _forget(layer, layers, values, uses)
    found: dict[relax.Var, np.ndarray] = {}
    for var, layer in layers.items():
        weights, bias = given[var]
        if not np.array_equal(layer.weights, weights, equal_nan=True):
            found[layer.sum] = layer.weights
        if layer.bias is not None and layer.bias is not bias:
            found[layer.result] = layer.bias
    return found


def _forget(
    layer: _Layer,
    layers: dict[relax.Var, _Layer],
    values: dict[relax.Var, relax.Expr],
    uses: dict[relax.Var, int],
) -> None:
    """Flush what a layer cannot feel of the one in front of it."""
    var, alone = layer.data, uses.get(layer.data) == 1
    while op_name(values.get(var)) in _BOUNDED:
        (var,) = values[var].args[:1]
        alone = alone and uses.get(var) == 1
    before = layers.get(var)
    if before is None:
        return
    bounds = before.bounds()
    layer.forget(bounds)
    dead = layer.unread() & np.isfinite(bounds)
    if alone and dead.any():
        before.kill(dead)


def _layers(func: relax.Function, uses: dict[relax.Var, int]) -> Iterator[_Layer]:
    """Yield the layers of a function, each in front of those that read it."""
    found: dict[relax.Var, _Layer] = {}
    for binding in bindings(func):
        var, call = binding.var, binding.value
        if _is_layer(call):
            groups = 1 if op_name(call) == "relax.matmul" else int(call.attrs.groups)
            data, weights = call.args
            found[var] = _Layer(var, var, data, constant_array(weights), groups)
        elif op_name(call) == "relax.add":
            read = next((arg for arg in call.args if arg in found and uses[arg] == 1), None)
            bias = None if read is None else _bias(call, read, found[read])
            if bias is not None:
                found[var] = replace(found.pop(read), result=var, bias=bias)
    yield from found.values()


def _is_layer(call: relax.Expr) -> bool:
    name = op_name(call)
    if name not in LAYERS or not is_constant(call.args[1]):
        return False
    if {dtype_name(expr) for expr in (*call.args, call)} != {"float32"}:
        return False
    if name == "relax.matmul":
        return len(static_shape(call.args[1])) == 2
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    return layouts == ("NCHW", "OIHW", "NCHW")


def _bias(call: relax.Call, read: relax.Var, layer: _Layer) -> np.ndarray | None:
    """Return the constant that an addition adds to a layer, where it has a number per output."""
    (other,) = (arg for arg in call.args if not arg.same_as(read)) or (None,)
    if other is None or not is_constant(other) or static_shape(call) is None:
        return None
    array = constant_array(other)
    outputs = layer.by_output.shape[0] * layer.by_output.shape[1]
    channels = -1 if layer.weights.ndim == 2 else -3
    fits = array.size == outputs and array.ndim <= len(static_shape(call)) and array.ndim
    axis = array.ndim + channels
    return array if fits and axis >= 0 and array.shape[axis] == outputs else None


def _has_tiny(weights: np.ndarray) -> bool:
    """Whether any weight is tiny, a block at a time: no mask as large as a matrix of 400 MB."""
    flat = weights.reshape(-1)
    return any(_is_tiny(flat[i : i + _BLOCK]).any() for i in range(0, flat.size, _BLOCK))


def _is_tiny(values: np.ndarray) -> np.ndarray:
    return (np.abs(values) < _TINY) & (values != 0)
