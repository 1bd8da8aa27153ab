"""Which kernels need not check what they are given.

TVM begins each kernel with checks of its arguments: their number, and of every tensor its type,
sizes, strides and device, each with the text of its error. Of kernels of one line they are four
fifths of the assembly, and of the time to make machine code; before its first run MobileNetV3
waited a second longer for them. What the virtual machine itself has allocated has the types that
Relax gave it, so only kernels that read what a caller passed, or what another library returned,
keep them: there a tensor may lie anywhere, with strides of its own.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_blislike.tvm_seams.relax_ir import functions, is_constant, op_name

_ALLOCATES = "relax.vm.alloc_tensor"
_LATE = "relax.vm.call_tir_dyn"
# What returns the tensor that it is given, as another view of it.
_VIEWS = frozenset(
    {"runtime.TVMTensorCreateView", "vm.builtin.ensure_zero_offset", "vm.builtin.reshape"}
)


def unchecked(mod: tvm.IRModule, mark: str) -> tvm.IRModule:
    """Return a module that marks kernels which are given tensors of the virtual machine alone.

    Parameters
    ----------
    mod : IRModule
        Functions as the virtual machine runs them, with their kernels. One that raises an error of
        its own, by the same statement that checks are made of, is not marked.
    mark : str
        The key of an attribute.
    """
    names = _Calls(mod).of_the_machine
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if gvar.name_hint in names and not _asserts(func):
            result.update_func(gvar, func.with_attr(mark, True))
    return result


def without_checks(mod: tvm.IRModule, mark: str) -> tvm.IRModule:
    """Return another module whose marked functions, as TVM's pipeline left them, check nothing."""
    marked = {g: f for g, f in mod.functions_items() if f.attrs and mark in f.attrs}
    result = mod.clone()
    result.update(tirx.transform.SkipAssert()(tvm.IRModule(marked)))
    return result


class _Calls:
    """What the kernels of a module are given."""

    def __init__(self, mod: tvm.IRModule) -> None:
        kernels = [g for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
        self._kernels = {gvar.name_hint for gvar in kernels}
        self._called: set[str] = set()
        self._from_elsewhere: set[str] = set()
        # Variables that are tensors of the machine's own.
        self._own: set[relax.Var] = set()
        for _, func in functions(mod):
            self._visit(func.body)

    @property
    def of_the_machine(self) -> set[str]:
        """Names of the kernels that are called, with nothing but tensors of the machine."""
        return self._called - self._from_elsewhere

    def _visit(self, body: relax.Expr) -> None:
        if not isinstance(body, relax.SeqExpr):
            return
        for block in body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value)

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.If):
            self._visit(value.true_branch)
            self._visit(value.false_branch)
        elif isinstance(value, relax.Call):
            self._note_call(value)
        if self._is_own(value):
            self._own.add(var)

    def _note_call(self, call: relax.Call) -> None:
        """Note a kernel that is called, or handed to a function of TVM's."""
        called, given = call.op, list(call.args)
        if op_name(call) == _LATE:
            called, given = given[0], list(given[1].fields)
        if not (isinstance(called, tvm.ir.GlobalVar) and called.name_hint in self._kernels):
            self._from_elsewhere |= {g.name_hint for g in given if isinstance(g, tvm.ir.GlobalVar)}
            return
        self._called.add(called.name_hint)
        if not all(self._is_own(arg) for arg in given):
            self._from_elsewhere.add(called.name_hint)

    def _is_own(self, value: relax.Expr) -> bool:
        if isinstance(value, relax.Var):
            return value in self._own
        if isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
            return str(value.op.global_symbol) in _VIEWS and self._is_own(value.args[0])
        return is_constant(value) or op_name(value) == _ALLOCATES


def _asserts(func: tirx.PrimFunc) -> bool:
    found: list[tirx.AssertStmt] = []
    tvm_ffi.structural_walk(func.body, [(tirx.AssertStmt, found.append)], order="pre")
    return bool(found)
