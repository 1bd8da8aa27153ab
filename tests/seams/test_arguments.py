"""Kernels check what comes from outside, and not what the virtual machine made itself."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_graphs import conv, execute, graph, random
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.model.marks import UNCHECKED
from tvm_blislike.passes import kernel_code
from tvm_blislike.pipeline import compile_module, for_machine, scheduled_calls
from tvm_blislike.tvm_seams.arguments import unchecked

# Part of what every kernel says that checks its arguments.
_SAYS = "when calling"


def _chosen(mod: tvm.IRModule) -> set[str]:
    """Return the kernels of a graph that check nothing, in the whole pipeline."""
    strategy = Strategy(native_core(), 1)
    target = tvm.target.Target(strategy.core.target_config(1))
    with target:
        calls, _ = scheduled_calls(mod, strategy, target)
        return _marked(unchecked(for_machine(calls, strategy, target), UNCHECKED))


def _marked(mod: tvm.IRModule) -> set[str]:
    functions = mod.functions_items()
    return {g.name_hint for g, func in functions if func.attrs and UNCHECKED in func.attrs}


def _three_layers(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """The first reads the input, the second one what it made; between them lies a view."""
    first = builder.emit(op.nn.softmax(x))
    seen = builder.emit(op.reshape(first, (1, 8, 5, 6)))
    return op.nn.max_pool2d(builder.emit(op.nn.softmax(seen, axis=1)), 2)


def test_all_behind_the_first_check_nothing() -> None:
    marked = _chosen(graph(_three_layers, (5, 8, 6)))
    assert {name.rstrip("0123456789") for name in marked} == {"softmax", "max_pool2d"}
    assert len(marked) == 2  # the other softmax is the first kernel


def test_a_view_of_the_input_is_checked() -> None:
    def viewed(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.nn.softmax(builder.emit(op.reshape(x, (4, 6))))

    assert not _chosen(graph(viewed, (24,)))


def test_code_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    build = kernel_code.tir_pipeline.build

    def listening(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        made = build(mod, target)
        sources.append(made.inspect_source("ll"))
        return made

    def layers(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return conv(builder, conv(builder, conv(builder, x, 8), 8), 8, k=1)

    monkeypatch.setattr(kernel_code.tir_pipeline, "build", listening)
    monkeypatch.setattr(kernel_code, "code_threads", lambda: 3)
    mod, data = graph(layers, (1, 3, 9, 9)), random(1, 3, 9, 9)
    executable, _ = compile_module(mod, Strategy(native_core(), 1))
    first, *others = sorted(sources, key=lambda text: _SAYS not in text)
    assert _SAYS in first and others
    assert not any(_SAYS in text for text in others)
    plain = execute(tvm.compile(mod, tvm.target.Target({"kind": "llvm"})), [data])
    np.testing.assert_allclose(execute(executable, [data])[0], plain[0], rtol=1e-4, atol=1e-5)


def test_a_caller_s_strides_are_refused() -> None:
    """What lies otherwise than the kernel reads it is an error, not another result."""
    executable, _ = compile_module(graph(_three_layers, (5, 8, 6)), Strategy(native_core(), 1))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    aligned = tvm.runtime.tensor(random(6, 8, 5))
    turned = tvm_ffi.from_dlpack(np.from_dlpack(aligned).T)
    with pytest.raises(Exception, match="compact"):
        machine["main"](turned)


@I.ir_module
class _Called:
    """As the virtual machine runs it: kernels with tensors from everywhere."""

    @T.prim_func(private=True)
    def own(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @T.prim_func(private=True)
    def raises(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        assert T.bool(False), ("InputError", ["no"])
        for i in range(4):
            b[i] = a[i]

    @T.prim_func(private=True)
    def once_from_elsewhere(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @T.prim_func(private=True)
    def from_a_library(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @T.prim_func(private=True)
    def handed_on(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @T.prim_func(private=True)
    def never_called(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")):
        cls = _Called
        storage = R.vm.alloc_storage(R.shape([64]), R.prim_value(0), R.dtype("uint8"))
        a = R.vm.alloc_tensor(storage, R.prim_value(0), R.shape([4]), R.dtype("float32"))
        b = R.vm.alloc_tensor(storage, R.prim_value(16), R.shape([4]), R.dtype("float32"))
        c = R.call_packed("vm.builtin.reshape", b, R.shape([4]), ty_args=R.Tensor((4,), "float32"))
        d = R.call_packed("another.library", b, ty_args=R.Tensor((4,), "float32"))
        cls.own(a, c)
        cls.own(R.const([1.0, 2.0, 3.0, 4.0], "float32"), c)
        cls.raises(a, b)
        cls.once_from_elsewhere(a, b)
        cls.once_from_elsewhere(x, b)
        cls.from_a_library(d, b)
        _ = R.call_packed("another.library", cls.handed_on, a, ty_args=R.Tensor((4,), "float32"))
        return b


def test_what_counts_as_the_machine_s_own() -> None:
    assert _marked(unchecked(_Called, UNCHECKED)) == {"own"}
