"""Functions inside functions that are being built, and that call themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_blislike.tvm_seams.steps import NUMBER, Step, counted, like, recursive

TENSOR, TRUTH = relax.TensorType((2,), "float32"), relax.TensorType((), "bool")


def doubled(builder: relax.BlockBuilder, params: list[relax.Var]) -> tvm.ir.GlobalVar:
    """Return a step that doubles the last of its parameters."""
    with builder.function("step", params=params, private=True):
        twice = relax.op.add(params[-1], params[-1])
        return builder.emit_func_output(relax.Tuple([*params[1:-1], twice]))


def run(builder: relax.BlockBuilder, *operands: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, operands)).numpy()


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_counted_steps_are_halves_of_halves(steps: int) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", TENSOR)
    with builder.function("main", params=[x]):
        step = doubled(builder, [relax.Var("number", NUMBER), *like([x])])
        builder.emit_func_output(counted(builder, Step(step, [x], [], [], []), steps))
    assert len(builder.get().functions) < 16
    np.testing.assert_allclose(run(builder, np.full(2, 2.0**-60, np.float32)), 2.0 ** (steps - 60))


@pytest.mark.parametrize("steps", [0, 64, 100])
def test_others_call_themselves(steps: int) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", TENSOR)
    most, go = relax.Var("most", NUMBER), relax.const(True, "bool")
    with builder.function("main", params=[x, most]):
        params = [relax.Var("number", NUMBER), relax.Var("go", TRUTH), *like([x])]
        step = doubled(builder, params)
        builder.emit_func_output(recursive(builder, step, most, [go, x], []))
    found = run(builder, np.full(2, 2.0**-60, np.float32), np.array(steps))
    np.testing.assert_allclose(found, 2.0 ** (steps - 60))
