"""The code of kernels, made by several threads: the same as by one, errors and all."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tvm
from tvm import te

from tvm_blislike.hardware import native_core
from tvm_blislike.passes import kernel_code
from tvm_blislike.passes.plan import Plan

TARGET = tvm.target.Target({"kind": "llvm"})
PLAN = Plan(native_core(), 1)


def scaled(factor: int) -> tvm.tirx.PrimFunc:
    data = te.placeholder((64,), name="data")
    result = te.compute((64,), lambda i: data[i] * float(factor), name="result")
    func = te.create_prim_func([data, result])
    return func.with_attr("global_symbol", f"scaled{factor}")


@pytest.mark.parametrize(("threads", "most", "modules"), [(1, 32, 1), (3, 32, 40), (3, 8, 24)])
def test_every_kernel_is_in_one_module(
    threads: int, most: int, modules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_code, "code_threads", lambda: threads)
    monkeypatch.setattr(kernel_code, "_MODULES_PER_THREAD", most)
    mod = tvm.IRModule({f"scaled{i}": scaled(i) for i in range(40)})
    parts = kernel_code.compiled_kernels(mod, TARGET, PLAN)
    assert len(parts) == modules
    data = tvm.runtime.tensor(np.arange(64, dtype="float32"))
    for factor in range(40):
        (owner,) = [part for part in parts if part.implements_function(f"scaled{factor}")]
        result = tvm.runtime.empty((64,), "float32")
        owner[f"scaled{factor}"](data, result)
        np.testing.assert_array_equal(result.numpy(), data.numpy() * factor)


def test_no_kernels_make_no_modules() -> None:
    assert kernel_code.compiled_kernels(tvm.IRModule({}), TARGET, PLAN) == []


def test_results_come_in_the_order_of_the_items() -> None:
    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert kernel_code.side_by_side(work, range(20), 4) == [i * i for i in range(20)]


def test_a_failure_keeps_what_has_not_begun_from_beginning() -> None:
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 1:
            raise ValueError("kernel 1")
        time.sleep(0.02)

    before = threading.active_count()
    with pytest.raises(ValueError, match="kernel 1"):
        kernel_code.side_by_side(work, range(100), 2)
    assert len(begun) < 100
    assert threading.active_count() == before


def test_options_of_the_caller_hold_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_code, "code_threads", lambda: 2)
    seen: list[int] = []

    def build(mod: tvm.IRModule, target: tvm.target.Target) -> int:
        seen.append(tvm.transform.PassContext.current().opt_level)
        return 0

    monkeypatch.setattr(kernel_code.tir_pipeline, "build", build)
    mod = tvm.IRModule({f"scaled{i}": scaled(i) for i in range(4)})
    with tvm.transform.PassContext(opt_level=1):
        kernel_code.compiled_kernels(mod, TARGET, PLAN)
    assert seen == [1] * 4
