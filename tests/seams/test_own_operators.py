"""An operator of Relax of one's own: its type is known, and a legalization takes its place."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, topi

from tvm_blislike.tvm_seams import functions, op_name, operators
from tvm_blislike.tvm_seams.own_operators import called, declared

NAME = "blislike.test_doubled"
DOUBLED = declared(NAME, "Twice a tensor.", lambda call: call.args[0].ty)


def graph() -> tvm.IRModule:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(called(DOUBLED, [x])))
        builder.emit_func_output(result)
    return builder.get()


def test_a_call_has_the_type_that_is_inferred_and_no_side_effects() -> None:
    mod = graph()
    assert NAME in operators(mod)
    ((_, func),) = functions(mod)
    assert [int(size) for size in func.ret_ty.shape] == [2, 3]
    assert func.is_pure
    call = func.body.blocks[0].bindings[0].value
    assert op_name(call) == NAME


def test_legalization_by_name_takes_its_place() -> None:
    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return builder.call_te(lambda x: topi.add(x, x), call.args[0])

    mod = relax.transform.LegalizeOps({NAME: legalized})(graph())
    assert NAME not in operators(mod) and "relax.call_tir" in operators(mod)
    x = np.arange(6, dtype="float32").reshape(2, 3)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), 2 * x)
