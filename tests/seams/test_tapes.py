"""What is relied upon of TVM's C interface of functions, and of what its machine tells."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.runtime.arrays import array_of
from tvm_blislike.runtime.instruments import attached
from tvm_blislike.tvm_seams.tapes import Recorder, Tape, bytes_of


def machine(build) -> relax.VirtualMachine:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(build(builder, x))
    target = tvm.target.Target({"kind": "llvm"})
    return relax.VirtualMachine(tvm.compile(builder.get(), target), tvm.cpu())


def recorded(vm: relax.VirtualMachine, x: tvm.runtime.Tensor):
    recorder = Recorder()
    with attached(vm, recorder):
        result = vm["main"](x)
    return recorder, result


def two_kernels(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return builder.emit(relax.op.add(builder.emit(relax.op.exp(x)), relax.const(1.0)))


def test_calls_inside_a_function_of_the_machine_are_noted() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), "float32"))
    inner = relax.Var("y", relax.TensorType((2, 3), "float32"))
    with builder.function("inner", [inner], private=True):
        function = builder.emit_func_output(builder.emit(relax.op.exp(inner)))
    with builder.function("main", [x]):
        called = builder.emit(relax.Call(function, [x]))
        builder.emit_func_output(builder.emit(relax.op.add(called, relax.const(1.0))))
    target = tvm.target.Target({"kind": "llvm"})
    vm = relax.VirtualMachine(tvm.compile(builder.get(), target), tvm.cpu())
    x = tvm.runtime.tensor(np.zeros((2, 3), np.float32))
    recorder, result = recorded(vm, x)
    assert recorder.is_complete and len(recorder.calls) == 2
    array_of(x)[:] = 2
    Tape(recorder).run()
    np.testing.assert_allclose(result.numpy(), np.full((2, 3), np.exp(2) + 1), rtol=1e-5)


def test_a_tape_runs_again_on_new_values_and_places() -> None:
    x = tvm.runtime.tensor(np.zeros((2, 3), np.float32))
    recorder, result = recorded(machine(two_kernels), x)
    assert recorder.is_complete and recorder.calls
    assert (result.data_ptr(), bytes_of(result)) in recorder.allocated
    tape, values = Tape(recorder), np.arange(6, dtype=np.float32).reshape(2, 3)
    array_of(x)[:] = values
    tape.run()
    np.testing.assert_allclose(result.numpy(), np.exp(values) + 1, rtol=1e-5)
    other = tvm.runtime.tensor(np.zeros((2, 3), np.float32))
    for number, (address, _) in enumerate(tape.tensors):
        if address == result.data_ptr():
            tape.move(number, other.data_ptr())
    array_of(x)[:] = 0
    tape.run()
    np.testing.assert_allclose(other.numpy(), 2)
    np.testing.assert_allclose(result.numpy(), np.exp(values) + 1, rtol=1e-5)


def test_a_tensor_lies_in_its_object_behind_the_header() -> None:
    tensor = tvm.runtime.tensor(np.zeros((2, 3, 5), np.float16))
    words = (ctypes.c_int64 * 6).from_address(tensor.__chandle__() + 24)
    assert words[0] == tensor.data_ptr()
    assert words[2] & 0xFFFFFFFF == 3  # axes
    assert (words[2] >> 32) & 0xFFFF == 0x1002  # 16 bits, of the kind 2
    assert list((ctypes.c_int64 * 3).from_address(words[3])) == [2, 3, 5]
    assert words[5] == 0


def test_a_tape_stops_where_a_condition_is_not_as_it_was() -> None:
    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        flag = builder.emit(relax.op.max(x))
        flag = builder.emit(relax.op.greater(flag, relax.const(0.0)))
        return builder.emit(relax.If(flag, relax.op.exp(x), relax.op.negative(x)))

    x = tvm.runtime.tensor(np.ones((2, 3), np.float32))
    recorder, result = recorded(machine(build), x)
    assert recorder.is_complete
    ((made, asked, outcome),) = recorder.conditions
    assert 0 < made < len(recorder.calls) and outcome
    tape = Tape(recorder)
    assert tape.tensors[-1] == (asked.data_ptr(), 1)
    array_of(x)[:] = 2
    assert tape.run()
    np.testing.assert_allclose(result.numpy(), np.exp(np.float32(2)), rtol=1e-5)
    array_of(x)[:] = -1
    assert not tape.run()
    np.testing.assert_allclose(result.numpy(), np.exp(np.float32(2)), rtol=1e-5)


def test_a_call_that_fails_is_told_by_name_and_ends_the_run() -> None:
    made, fails = [0], [False]

    @tvm.register_global_func("tests.tapes.count", override=True)
    def count(_x: tvm.runtime.Tensor) -> None:
        made[0] += 1

    @tvm.register_global_func("tests.tapes.fail", override=True)
    def fail(_x: tvm.runtime.Tensor) -> None:
        if fails[0]:
            raise ValueError("this is the kernel that fails")

    recorder, x = Recorder(), tvm.runtime.tensor(np.zeros(3, np.float32))
    recorder.calls = [(tvm.get_global_func(f"tests.tapes.{n}"), (x,)) for n in ("fail", "count")]
    tape = Tape(recorder)
    tape.run()
    fails[0] = True
    for _ in range(2):
        with pytest.raises(ValueError, match="the kernel that fails"):
            tape.run()
    assert made == [1]
    fails[0] = False
    tape.run()
    assert made == [2]


def test_integers_are_arguments_too() -> None:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("put")
        T.func_attr({"global_symbol": "put"})
        out = T.match_buffer(T.arg("out", T.handle()), (1,), "int64")
        value = T.arg("value", T.int64())
        T.buffer_store(out, value, [0])
    lib = tvm.compile(tvm.IRModule({"put": builder.get()}), tvm.target.Target({"kind": "llvm"}))
    recorder, out = Recorder(), tvm.runtime.tensor(np.zeros(1, np.int64))
    recorder.calls = [(lib["put"], (out, 41))]
    Tape(recorder).run()
    assert out.numpy()[0] == 41
