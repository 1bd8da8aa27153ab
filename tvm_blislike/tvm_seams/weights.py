"""Weights as last arguments of functions, in place of constants inside an executable.

TVM hashes each constant of an executable when it makes one: 0.3 s of ResNet-50. Where it loads one
from a file it copies all of them three times, to memory of which nobody else has a say.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvm_blislike.tvm_seams.loaded import Weights, bytes_of, memory_of
from tvm_blislike.tvm_seams.relax_ir import functions, is_constant, is_public

# Smaller constants stay in the executable: there they cost next to nothing.
_LEAST_BYTES = 1 << 12
# By which constants of equal sizes are told apart, nearly always.
_FIRST_BYTES = 64


def taken_out(mod: tvm.IRModule) -> tuple[tvm.IRModule, Weights]:
    """Return Relax functions that take their large constants as last arguments, and those.

    Functions that others call are left as they are. Equal constants are one tensor.

    Parameters
    ----------
    mod : IRModule
        Of Relax functions as a virtual machine takes them.
    """
    called = _called(mod)
    kept, same = dict(functions(mod)), _Same()
    weights: dict[str, list[tvm.runtime.Tensor]] = {}
    for name, func in functions(mod):
        if is_public(func) and name.name_hint not in called:
            kept[name], tensors = _without_constants(func, same)
            weights.update({name.name_hint: tensors} if tensors else {})
    return tvm.IRModule(kept, attrs=mod.attrs), weights


def _without_constants(
    func: relax.Function, same: _Same
) -> tuple[relax.Function, list[tvm.runtime.Tensor]]:
    """Return a function that takes its large constants behind its arguments, and those."""
    taken: dict[int, relax.Var] = {}
    tensors: list[tvm.runtime.Tensor] = []

    def taken_or_kept(expr: relax.Constant) -> relax.Expr:
        if not is_constant(expr) or not _is_large(expr.value):
            return expr
        number = same.number(expr.value)
        if number not in taken:
            taken[number] = relax.Var(f"weight{len(tensors)}", expr.ty)
            tensors.append(same.tensors[number])
        return taken[number]

    body = tvm_ffi.structural_map(func.body, [(tvm.ir.GenericConst, taken_or_kept)])
    params = [*func.params, *taken.values()]
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs), tensors


class _Same:
    """Numbers of tensors; equal ones have the same.

    Attributes
    ----------
    tensors : list of Tensor
        By number.
    """

    def __init__(self) -> None:
        self.tensors: list[tvm.runtime.Tensor] = []
        self._alike: dict[Any, list[int]] = {}

    def number(self, tensor: tvm.runtime.Tensor) -> int:
        """Return the number of a tensor."""
        memory = memory_of(tensor)
        kind = (str(tensor.dtype), tuple(tensor.shape), bytes(memory[:_FIRST_BYTES]))
        alike = self._alike.setdefault(kind, [])
        for number in alike:
            other = self.tensors[number]
            if tensor.data_ptr() == other.data_ptr() or memory == memory_of(other):
                return number
        alike.append(len(self.tensors))
        self.tensors.append(tensor)
        return alike[-1]


def _is_large(tensor: tvm.runtime.Tensor) -> bool:
    """Whether it is worth an argument; not where elements are parts of bytes."""
    return tensor.dtype.bits % 8 == 0 and bytes_of(tensor) >= _LEAST_BYTES


def _called(mod: tvm.IRModule) -> set[str]:
    """Return the names of functions that are named inside of others."""
    found: set[str] = set()

    def add(name: tvm.ir.GlobalVar) -> None:
        found.add(name.name_hint)

    for _, func in functions(mod):
        tvm_ffi.structural_walk(func.body, (tvm.ir.GlobalVar, add), order="pre")
    return found
