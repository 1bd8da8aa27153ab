"""Passes that say what they are about, run where that occurs in a module.

Most models have nothing for most passes: what is about recurrent cells, say, is not even entered
for a model of convolutions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import tvm
from tvm import relax

from tvm_blislike.tvm_seams import functions, op_name

# Occurs where not all tensors are of one data type.
SEVERAL_TYPES = "several data types"
# Occurs where two calls of an operator read the same variables, whatever constants they have.
REPEATED = "calls alike"
_Given = TypeVar("_Given")
_Run = Callable[[tvm.IRModule], tvm.IRModule]


@dataclass(frozen=True)
class Step(Generic[_Given]):
    """A pass, and what must occur in a module for it to change anything.

    Parameters
    ----------
    make : callable
        Returns the pass for what is given, such as a core.
    about : tuple of collections of str
        Of each of these something must occur: names of operators, data types, and marks of
        functions (`occurring`). Without any the pass always runs.
    """

    make: Callable[[_Given], _Run]
    about: tuple[Collection[str], ...] = ()

    def concerns(self, present: Collection[str]) -> bool:
        """Whether there may be something to do where only this occurs."""
        return all(any(name in present for name in names) for names in self.about)


def run_steps(mod: tvm.IRModule, steps: Sequence[Step[_Given]], given: _Given) -> tvm.IRModule:
    """Return a module behind those of some steps, in order, that have something to do in it."""
    present = occurring(mod)
    for step in steps:
        if step.concerns(present):
            mod = step.make(given)(mod)
            present = occurring(mod)
    return mod


def occurring(mod: tvm.IRModule) -> frozenset[str]:
    """Return what occurs in a module, for `Step.about`.

    Names of the operators that its Relax functions call, data types of the tensors in them, keys
    of the attributes of its other functions, and the marks above.
    """
    names: set[str] = set()
    dtypes: set[str] = set()
    calls: Counter[tuple[str | relax.Var, ...]] = Counter()

    def visit(expr: relax.Expr) -> None:
        names.add(op_name(expr))
        dtypes.update(_data_types(getattr(expr, "ty", None)))
        if isinstance(expr, relax.Call):
            read = (arg for arg in expr.args if isinstance(arg, relax.Var))
            calls[(op_name(expr), *read)] += 1

    for _, func in functions(mod):
        relax.analysis.post_order_visit(func, visit)
    others = [f for _, f in mod.functions_items() if not isinstance(f, relax.Function)]
    marks = {str(key) for func in others if func.attrs for key in func.attrs.keys()}
    marks |= {SEVERAL_TYPES} if len(dtypes) > 1 else set()
    marks |= {REPEATED} if any(count > 1 for count in calls.values()) else set()
    return frozenset(names | dtypes | marks)


def _data_types(type_: tvm.ir.Type | None) -> list[str]:
    """Return the data types of a tensor, or of the parts of a tuple; none of anything else."""
    if isinstance(type_, relax.TupleType):
        return [dtype for part in type_.fields for dtype in _data_types(part)]
    return [str(type_.dtype)] if isinstance(type_, relax.TensorType) else []
