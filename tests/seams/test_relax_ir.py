"""How TVM spells its Relax IR."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from small_kernels import graph
from tvm import relax, tirx

from tvm_blislike import tvm_seams


def test_calls_and_constants_are_told_apart() -> None:
    value = np.arange(6, dtype="float32").reshape(2, 3)
    constant = tvm_seams.constant(value.T, "float32")
    call = relax.op.nn.relu(constant)
    assert (tvm_seams.op_name(call), tvm_seams.op_name(constant)) == ("relax.nn.relu", "")
    assert tvm_seams.is_constant(constant) and not tvm_seams.is_constant(call)
    # A shape, a data type, a number and a name.
    allocated = relax.op.builtin.alloc_tensor(relax.ShapeExpr([2, 3]), "float32", 0)
    assert not any(map(tvm_seams.is_constant, allocated.args))
    np.testing.assert_array_equal(tvm_seams.constant_array(constant), value.T)
    assert tvm_seams.static_shape(constant) == (3, 2)
    assert tvm_seams.dtype_name(constant) == "float32"


def test_permutations_have_axes_whether_named_or_not() -> None:
    x = relax.Var("x", relax.TensorType((2, 3, 4), "float32"))
    named, turned = relax.op.permute_dims(x, [0, -1, 1]), relax.op.permute_dims(x)
    assert tvm_seams.permuted_axes(named) == (0, 2, 1)
    assert tvm_seams.permuted_axes(turned) == (2, 1, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool"])
def test_constants_of_any_type_keep_their_values(dtype: str) -> None:
    found = tvm_seams.constant(np.array([0, 1, 1]), dtype)
    assert tvm_seams.dtype_name(found) == dtype
    assert tvm_seams.constant_array(found).astype("int32").tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_scaled_constant_is_rounded_once(dtype: str) -> None:
    value = np.linspace(-3, 5, 60, dtype=dtype).reshape(3, 4, 5)
    scale = np.array([1 / 3, 1e-3, 0.7]).reshape(3, 1, 1)
    found = tvm_seams.constant_array(tvm_seams.scaled_constant(value, scale))
    expected = (value.astype("float64") * scale).astype(dtype)
    np.testing.assert_array_equal(found, expected, strict=True)


def test_a_constant_is_no_copy_and_cannot_be_written_to() -> None:
    found = tvm_seams.constant(np.zeros(4), "float32")
    one, other = (tvm_seams.constant_array(found) for _ in range(2))
    assert np.shares_memory(one, other) and not one.flags.writeable


def test_unknown_sizes_are_seen() -> None:
    n = tirx.Var("n", "int64")
    known, partly = (relax.TensorType(shape, "float32") for shape in ((2, 3), (2, n)))
    assert tvm_seams.static_shape(relax.Var("x", known)) == (2, 3)
    assert tvm_seams.static_shape(relax.Var("x", partly)) is None
    assert tvm_seams.has_known_sizes(relax.Var("x", known))
    assert not tvm_seams.has_known_sizes(relax.Var("x", partly))
    assert not tvm_seams.has_known_sizes(relax.Var("x", relax.ShapeType(ndim=2)))


def test_functions_bindings_and_uses_are_found() -> None:
    mod = graph()
    ((gvar, func),) = tvm_seams.functions(mod)
    assert gvar.name_hint == "main"
    first, second, *_ = tvm_seams.bindings(func)
    counts = tvm_seams.use_counts(func)
    assert (counts[func.params[0]], counts[first.var]) == (1, 1)
    assert second.var in counts


def test_errors_of_passes_keep_their_type() -> None:
    from tvm_blislike.errors import UnsupportedOperatorError

    @tvm.transform.module_pass(opt_level=0, name="seams.Raise")
    def fail(_mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        raise kind("said by a pass")

    for kind in (UnsupportedOperatorError, KeyboardInterrupt):
        with pytest.raises(kind, match="said by a pass"):
            tvm.transform.Sequential([fail])(graph())
