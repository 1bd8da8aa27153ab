"""Scales and shifts per channel behind convolutions: into their weights, and one addition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.passes.image_operators import convolved_like
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    scaled_constant,
    use_counts,
)

AFFINE = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")


@dataclass(frozen=True)
class _Folded:
    """A value known to be `conv2d(data, weights) * scale + shift`, per output channel.

    `largest` has the largest magnitude of each channel's weights.
    """

    conv: relax.Call
    largest: np.ndarray
    scale: np.ndarray
    shift: np.ndarray

    @staticmethod
    def of(conv: relax.Call) -> _Folded:
        weights = constant_array(conv.args[1])
        low, high = (reduce(axis=(1, 2, 3), initial=0) for reduce in (weights.min, weights.max))
        largest = np.maximum(-low, high).astype(np.float64)
        return _Folded(conv, largest, np.ones(len(largest)), np.zeros(len(largest)))

    def then(self, op: str, constant: np.ndarray) -> _Folded:
        scale, shift, c = self.scale, self.shift, constant.astype(np.float64)
        if op == "relax.add":
            return replace(self, shift=shift + c)
        if op == "relax.subtract":
            return replace(self, shift=shift - c)
        if op == "relax.multiply":
            return replace(self, scale=scale * c, shift=shift * c)
        with np.errstate(divide="ignore", invalid="ignore"):
            return replace(self, scale=scale / c, shift=shift / c)

    @property
    def is_finite(self) -> bool:
        """Whether weights and shift stay numbers of their data type.

        A quotient by 0 is infinite, but a sum with infinite weights of both signs is no number.
        """
        most = np.finfo(dtype_name(self.conv)).max
        with np.errstate(invalid="ignore"):
            largest = np.maximum(self.largest * np.abs(self.scale), np.abs(self.shift))
        return bool(np.all(largest <= most))


@mutator
class Affine(PyExprMutator):
    """Fold per-channel scales and shifts into the constant weights in front of them."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self.folded = _find_folded(func)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Emit the convolution and its addition in the place of the last scale or shift."""
        if binding.var not in self.folded:
            super().visit_var_binding_(binding)
            return
        folded = self.folded[binding.var]
        value = self._scaled(folded)
        if np.any(folded.shift):
            shift = folded.shift.astype(dtype_name(folded.conv.args[1])).reshape(1, -1, 1, 1)
            value = relax.op.add(self.builder_.emit(value), constant(shift, str(shift.dtype)))
        inner = isinstance(binding.var, relax.DataflowVar)
        # A variable that is read outside its dataflow block must stay one.
        leaves_block = self.builder_.current_block_is_dataflow() and not inner
        emit = self.builder_.emit_output if leaves_block else self.builder_.emit
        self.set_var_remap(binding.var, emit(value))

    def _scaled(self, folded: _Folded) -> relax.Call:
        """Return the convolution with the scale in its weights."""
        conv = self.visit_expr(folded.conv)
        weights = constant_array(conv.args[1])
        scaled = scaled_constant(weights, folded.scale.reshape(-1, 1, 1, 1))
        return convolved_like(conv, conv.args[0], scaled)


def _find_folded(func: relax.Function) -> dict[relax.Var, _Folded]:
    """Return the last value of each chain conv2d, op with constant, op with constant, ..."""
    uses = use_counts(func)
    chains: dict[relax.Var, _Folded] = {}
    for binding in bindings(func):
        found = _as_chain(binding.value, chains, uses)
        if found is None:
            continue
        folded, earlier = found
        if earlier is not None:
            del chains[earlier]
        chains[binding.var] = folded
    return {var: f for var, f in chains.items() if np.any(f.shift) or np.any(f.scale != 1)}


def _as_chain(
    value: relax.Expr, chains: dict[relax.Var, _Folded], uses: dict[relax.Var, int]
) -> tuple[_Folded, relax.Var | None] | None:
    if _is_foldable_conv(value):
        return _Folded.of(value), None
    if not isinstance(value, relax.Call) or op_name(value) not in AFFINE:
        return None
    left, right = value.args
    if op_name(value) in ("relax.add", "relax.multiply") and is_constant(left):
        left, right = right, left
    if not (isinstance(left, relax.Var) and left in chains and uses[left] == 1):
        return None
    constant = _per_channel(right, len(chains[left].scale))
    if constant is None:
        return None
    folded = chains[left].then(op_name(value), constant)
    return (folded, left) if folded.is_finite else None


def _is_foldable_conv(value: relax.Expr) -> bool:
    return (
        op_name(value) == "relax.nn.conv2d"
        and is_constant(value.args[1])
        and value.attrs.data_layout == "NCHW"
        and value.attrs.kernel_layout == "OIHW"
        and value.attrs.out_layout == "NCHW"
        and dtype_name(value) in ("float32", "float16")
        and all(dtype_name(arg) == dtype_name(value) for arg in value.args)
    )


def _per_channel(value: relax.Expr, channels: int) -> np.ndarray | None:
    """Return one number per channel when `value` broadcasts along NCHW like that."""
    if not is_constant(value):
        return None
    array = constant_array(value)
    if array.ndim > 4:
        return None  # The result has as many axes.
    if array.size == 1:
        return np.full(channels, array.reshape(()))
    shape = (1,) * (4 - array.ndim) + array.shape
    return array.reshape(-1) if shape == (1, channels, 1, 1) else None
