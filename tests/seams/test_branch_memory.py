"""Each tensor of a branch has memory of its own, which TVM's plan does not give it."""

from __future__ import annotations

import tvm
from allocations import PLAN, STORAGE, with_allocations
from tvm import relax
from tvm.relax import op

from tvm_blislike.tvm_seams import functions, op_name
from tvm_blislike.tvm_seams.branch_memory import branch_memory

TYPE = relax.TensorType((4,), "float32")


def two_branches() -> tvm.IRModule:
    """Return a function that allocates a tensor for its own use in each branch, and the results."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    condition = relax.Var("c", relax.TensorType((), "bool"))

    def computed(name: str) -> relax.SeqExpr:
        inner, result = relax.Var(name, TYPE), relax.Var(f"{name}_y", TYPE)
        bindings = [
            relax.VarBinding(inner, op.add(x, x)),
            relax.VarBinding(result, op.multiply(inner, x)),
        ]
        return relax.SeqExpr([relax.BindingBlock(bindings)], result)

    with builder.function("main", [x, condition]):
        found = builder.emit(relax.If(condition, computed("a"), computed("b")))
        builder.emit_func_output(found)
    return with_allocations(builder.get())


def allocating(mod: tvm.IRModule) -> list[str]:
    """Return the operators that allocate in a module, in order."""
    found: list[str] = []
    for _, func in functions(mod):
        relax.analysis.post_order_visit(func, lambda e: found.append(op_name(e)))
    return [name for name in found if "alloc" in name]


def test_tensors_of_branches_have_storage() -> None:
    assert allocating(two_branches()) == ["relax.builtin.alloc_tensor"] * 4
    mine = allocating(branch_memory(two_branches()))
    assert mine == [STORAGE, "relax.memory.alloc_tensor"] * 4


def test_tvm_plans_one_storage_for_both() -> None:
    """Where it does so no more, `branch_memory` may go."""
    assert allocating(PLAN(two_branches())).count(STORAGE) == 1
    assert allocating(PLAN(branch_memory(two_branches()))).count(STORAGE) == 4
