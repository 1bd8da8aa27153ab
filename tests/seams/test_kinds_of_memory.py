"""Tensors of one kind do not take over the memory of another's, and results are plain memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from allocations import PLAN, STORAGE, with_allocations
from tvm import relax
from tvm.relax import op

from tvm_blislike.tvm_seams import functions, op_name
from tvm_blislike.tvm_seams.kinds_of_memory import planned_by_kind

TENSOR = "relax.builtin.alloc_tensor"


def chain(*shapes: tuple[int, ...]) -> tvm.IRModule:
    """Return a function that fills a tensor of each shape with the sum of the one before."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with builder.function("main", [x]):
        value = x
        for shape in shapes:
            wide = builder.emit(op.broadcast_to(value, shape))
            value = builder.emit(op.sum(wide, axis=[0], keepdims=True))
        builder.emit_func_output(value)
    return with_allocations(builder.get())


def allocated(mod: tvm.IRModule) -> list[tuple[str, int]]:
    """Return scope and bytes of each storage of a tensor, 0 of those that are not planned."""
    found: list[tuple[str, int]] = []

    def visit(expr: relax.Expr) -> None:
        if op_name(expr) == STORAGE:
            size = int(expr.args[0].values[0])
            found.extend([(expr.args[2].value, size)] * (size >= 4096))
        elif op_name(expr) == TENSOR:
            found.append((expr.args[3].value, 0))

    for _, func in functions(mod):
        relax.analysis.post_order_visit(func, visit)
    return found


def planned(mod: tvm.IRModule, kind_of) -> list[tuple[str, int]]:
    return allocated(tvm.transform.Sequential(planned_by_kind(kind_of, PLAN))(mod))


# The result of the function, which is not planned.
RESULT = ("global", 0)


def test_tvm_shares_storage_among_sizes() -> None:
    """Where it does so no more, `planned_by_kind` may go."""
    assert sorted(allocated(PLAN(chain((1024,), (4096,), (2048,))))) == [RESULT, ("global", 16384)]


def test_kinds_are_apart_and_plain_behind_the_plan() -> None:
    mod = chain((1024,), (4096,), (2048,), (4096,))
    apart = planned(mod, lambda shape: str(shape[0]))
    assert sorted(apart) == [RESULT, ("global", 4096), ("global", 8192), ("global", 16384)]


def test_tensors_without_a_kind_share_among_themselves() -> None:
    mod = chain((1024,), (4096,), (2048,))
    found = planned(mod, lambda shape: "large" if shape[0] == 4096 else "")
    assert sorted(found) == [RESULT, ("global", 8192), ("global", 16384)]


@pytest.mark.parametrize("kind_of", [lambda _: "", lambda shape: str(shape)])
def test_results_are_computed_as_before(kind_of) -> None:
    mod = chain((1024,), (4096,), (2048,))
    with tvm.target.Target({"kind": "llvm"}):
        last = relax.backend.cpu_generic.pipeline.finalize_passes(tvm.target.Target.current())[1:]
        whole = tvm.transform.Sequential([*planned_by_kind(kind_of, PLAN), *last])(mod)
        built = relax.VMExecutable(tvm.compile(whole, relax_pipeline=None).mod)
    machine = relax.VirtualMachine(built, tvm.cpu())
    given = tvm.runtime.tensor(np.ones(1, "float32"))
    assert machine["main"](given).numpy().tolist() == [1024.0 * 4096 * 2048]
