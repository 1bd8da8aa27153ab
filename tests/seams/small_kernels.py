"""PrimFuncs and graphs of a few elements, which the contracts with TVM are tried on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from tvm_blislike.tvm_seams.attributes import NEVER_FUSED

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
ELEMENTS = 4096


@tvm.instrument.pass_instrument
class Seen:
    """The names of the passes that run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        self.names.append(str(info.name))


def doubled(name: str = "doubled", parallel: bool = False) -> tirx.PrimFunc:
    """Return a PrimFunc (data, result) that adds each element to itself."""
    data = te.placeholder((64, ELEMENTS // 64), name="data")
    result = te.compute(data.shape, lambda *at: data(*at) + data(*at), name="result")
    sch = tvm.s_tir.Schedule(te.create_prim_func([data, result]))
    if parallel:
        sch.parallel(sch.get_loops("result")[0])
    return sch.mod["main"].with_attr("global_symbol", name)


def graph(attributes: Mapping[str, Any] = NEVER_FUSED) -> tvm.IRModule:
    """Return a module that adds twice, the first time by a PrimFunc with attributes."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((64, 64), "float32"))

    def add(a: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda *at: a(*at) + 1.0)

    with builder.function("main", [data]):
        with builder.dataflow():
            first = builder.emit_te(
                add, data, primfunc_name_hint="first", primfunc_attrs=dict(attributes)
            )
            second = builder.emit_te(add, first, primfunc_name_hint="second")
            result = builder.emit_output(second)
        builder.emit_func_output(result)
    return builder.get()


def executable() -> tuple[tvm.IRModule, tvm.runtime.Executable]:
    """Return a lowered Relax module with a constant, and what is compiled of it."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((64, 64), "float32"))
    with builder.function("main", [data]):
        weights = relax.const(np.full((64, 64), 2.0, "float32"))
        builder.emit_func_output(builder.emit(relax.op.add(data, weights)))
    with TARGET:
        lowered = relax.get_pipeline("default")(builder.get())
    return lowered, tvm.compile(lowered, TARGET, relax_pipeline=None)


def onnx_graph(operator: str, inputs: int = 1, **attributes: Any) -> Any:
    """Return a graph of one node named "the node"."""
    names = [f"input_{number}" for number in range(inputs)]
    node = helper.make_node(operator, names, ["output"], name="the node", **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in names]
    result = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
    return helper.make_graph([node], "graph", ends, [result])
