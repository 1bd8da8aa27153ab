"""Constants of functions as their last arguments."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from small_kernels import TARGET, executable
from tvm import relax

from tvm_blislike.tvm_seams import executables, weights
from tvm_blislike.tvm_seams.loaded import memory_of
from tvm_blislike.tvm_seams.relax_ir import functions, is_constant

ONES = np.ones((64, 64), "float32")


def constants_in(mod: tvm.IRModule) -> dict[str, int]:
    """How many tensors of each function's are constants."""
    counts: dict[str, int] = {}
    for name, func in functions(mod):
        found: list[object] = []
        relax.analysis.post_order_visit(
            func, lambda e, f=found: f.append(e) if is_constant(e) else 0
        )
        counts[name.name_hint] = len(found)
    return counts


def adding(*constants: np.ndarray, calls: bool = False) -> tvm.IRModule:
    """Return a lowered module that adds constants to what it takes, by a function of its own."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((64, 64), "float32"))

    def add_all(value: relax.Expr) -> None:
        for constant in constants:
            value = builder.emit(relax.op.add(value, relax.const(constant)))
        builder.emit_func_output(value)

    if calls:
        with builder.function("inner", [data], private=True):
            add_all(data)
        with builder.function("main", [data]):
            inner = builder.get().get_global_var("inner")
            add_all(builder.emit(relax.Call(inner, [data])))
    else:
        with builder.function("main", [data]):
            add_all(data)
    with TARGET:
        return relax.get_pipeline("default")(builder.get())


def run(lowered: tvm.IRModule) -> tuple[np.ndarray, weights.Weights]:
    """Return what `main` makes of ones with its weights as arguments, and these."""
    kernels = tvm.compile(lowered, TARGET, relax_pipeline=None).mod.imports
    made, taken = executables.taking_weights(lowered, kernels)
    machine = relax.VirtualMachine(made, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(ONES), *taken.get("main", ())).numpy(), taken


def test_large_constants_become_arguments_and_small_ones_stay() -> None:
    large, small = np.full((64, 64), 2, "float32"), np.full((1, 64), 3, "float32")
    lowered = adding(large, small, 2 * large, large.copy())
    result, taken = run(lowered)
    np.testing.assert_array_equal(result, ONES + 2 + 3 + 4 + 2)
    # The last one is equal to the first.
    assert [len(each) for each in taken.values()] == [2]
    np.testing.assert_array_equal(taken["main"][1].numpy(), 2 * large)
    assert constants_in(weights.taken_out(executables.relax_part(lowered))[0]) == {"main": 1}


def test_what_differs_behind_an_equal_beginning_is_two() -> None:
    one, other = np.zeros((64, 64), "float32"), np.zeros((64, 64), "float32")
    other[-1, -1] = 1
    result, taken = run(adding(one, other))
    np.testing.assert_array_equal(result, ONES + other)
    assert len(taken["main"]) == 2


def test_other_shapes_and_types_of_the_same_bytes_are_others() -> None:
    shared = weights._Same()
    zeros = [
        np.zeros(s, t) for s, t in (((64, 2), "float32"), ((128,), "float32"), ((128,), "int32"))
    ]
    assert [shared.number(tvm.runtime.tensor(each)) for each in zeros * 2] == [0, 1, 2, 0, 1, 2]
    assert len(shared.tensors) == 3


def test_functions_that_others_call_keep_theirs() -> None:
    lowered = adding(2 * ONES, 3 * ONES, calls=True)
    assert {"inner", "main"} <= {name.name_hint for name, _ in functions(lowered)}
    result, taken = run(lowered)
    np.testing.assert_array_equal(result, 11 * ONES)
    assert set(taken) == {"main"} and len(taken["main"]) == 2
    left = constants_in(weights.taken_out(executables.relax_part(lowered))[0])
    assert left["inner"] == 2 and left["main"] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int4"])
def test_elements_of_parts_of_bytes_stay(dtype: str) -> None:
    tensor = tvm.runtime.empty((256, 256), dtype)
    assert weights._is_large(tensor) == (dtype != "int4")


def test_executables_of_both_kinds_compute_the_same() -> None:
    lowered, whole = executable()
    result, taken = run(lowered)
    machine = relax.VirtualMachine(whole, tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(ONES)).numpy(), result)
    assert memory_of(taken["main"][0]) == np.full((64, 64), 2.0, "float32").tobytes()
