"""Relax modules for the tests of passes, and what is left in them afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.pipeline import compile_module
from tvm_blislike.tvm_seams import bindings, functions, op_name, static_shape

RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def graph(function: Callable[..., relax.Expr], *shapes: Sequence[int]) -> tvm.IRModule:
    """Build a Relax module with one dataflow block around `function` of float32 tensors.

    `function` gets the block builder and the inputs; it may return several outputs.
    """
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            results = function(builder, *inputs)
            several = isinstance(results, tuple)
            outputs = [builder.emit_output(r) for r in (results if several else (results,))]
        builder.emit_func_output(outputs if several else outputs[0])
    return builder.get()


def conv(
    builder: relax.BlockBuilder, x: relax.Expr, co: int, k: int = 3, **attrs: int
) -> relax.Var:
    """Emit a convolution that keeps the size of the image."""
    x = x if isinstance(x, relax.Var) else builder.emit(x)
    ci = static_shape(x)[1] // attrs.get("groups", 1)
    weights = random(co, ci, k, k) / np.float32(k * np.sqrt(ci))
    return builder.emit(op.nn.conv2d(x, relax.const(weights), padding=k // 2, **attrs))


def calls(mod: tvm.IRModule, *names: str) -> list[relax.Call]:
    """Operator calls of a module in order, of the given operators only if there are any."""
    wanted = {f"relax.{name}" for name in names}
    values = [b.value for _, func in functions(mod) for b in bindings(func)]
    return [v for v in values if op_name(v) and (not wanted or op_name(v) in wanted)]


def operators(mod: tvm.IRModule) -> Counter[str]:
    """How often each operator is called."""
    return Counter(op_name(call).removeprefix("relax.") for call in calls(mod))


def run(mod: tvm.IRModule, *arrays: np.ndarray, threads: int = 1) -> np.ndarray:
    """Compile through the whole pipeline for this machine and run; one output."""
    (result,) = execute(compile_module(mod, Strategy(native_core(), threads))[0], arrays)
    return result


def execute(executable: tvm.runtime.Executable, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a compiled module; return all its outputs."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    results = machine["main"](*map(tvm.runtime.tensor, arrays))
    results = [results] if isinstance(results, tvm.runtime.Tensor) else results
    return [result.numpy() for result in results]


def assert_same_as_plain_tvm(mod: tvm.IRModule, threads: int = 1) -> None:
    """Compare what the pipeline computes with TVM's own, which knows no layouts."""
    arrays = [random(*static_shape(param)) for param in mod["main"].params]
    ours = execute(compile_module(mod, Strategy(native_core(), threads))[0], arrays)
    # Checks of arguments are most of the code of small kernels.
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        plain = execute(tvm.compile(mod, tvm.target.Target("llvm")), arrays)
    for actual, expected in zip(ours, plain, strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
