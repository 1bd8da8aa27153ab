"""Kernels that raise an error instead of computing."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED
from tvm_blislike.tvm_seams.loaded import REFUSAL
from tvm_blislike.tvm_seams.relax_ir import dtype_name, static_shape


def refusal(
    builder: relax.BlockBuilder,
    operand: relax.Expr,
    shape: tuple[int, ...],
    dtype: str,
    message: str,
    notes: Mapping[str, str],
) -> relax.Var:
    """Emit a tensor whose kernel raises an error when it is to be computed.

    For Relax it is a pure function like any other, so that passes and libraries need not know of
    it: what takes a tensor that nobody reads away takes the error away, too.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    operand : relax.Expr
        A tensor that is known at run time only. The kernel does not read it; without any TVM
        would compute the result ahead.
    shape : tuple of int
        Of the tensor.
    dtype : str
        Its element type.
    message : str
        What the error says; see `loaded.raised_as`.
    notes : mapping of str to str
        Further attributes of the kernel.
    """
    with IRBuilder() as made:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.arg("operand", T.buffer(static_shape(operand), dtype_name(operand)))
            T.arg("result", T.buffer(shape, dtype))
            with T.sblock("root"):
                T.reads()
                T.writes()
                with T.Assert(tirx.const(False, "bool"), message, REFUSAL):
                    T.evaluate(0)
    func = made.get().without_attr("global_symbol")
    gvar = builder.add_func(func.with_attr({**IS_SCHEDULED, **NEVER_FUSED, **notes}), "impossible")
    call = relax.call_tir(gvar, [operand], relax.TensorType(shape, dtype))
    return builder.emit(call)
