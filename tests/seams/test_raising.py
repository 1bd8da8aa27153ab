"""A kernel that raises an error: for Relax a function like others, whose result is not folded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_blislike.errors import InputError
from tvm_blislike.tvm_seams import functions
from tvm_blislike.tvm_seams.loaded import raised_as
from tvm_blislike.tvm_seams.raising import refusal

MESSAGE = "If (node 'it'): 50 % of it"


class Refused(Exception):
    """What the error is raised as."""


class RefusedAgain(Exception):
    """What it is raised as later on."""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    raised_as(InputError)


def compiled(read: bool) -> relax.VirtualMachine:
    """Return a function of a condition, whose result is one tensor or another."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((), "bool"))
    with builder.function("main", [x]):
        with builder.dataflow():
            refused = refusal(builder, x, (2, 3), "float32", MESSAGE, {"noted": MESSAGE})
            result = refused if read else relax.const(np.ones((2, 3), "float32"))
            result = builder.emit_output(builder.emit(relax.op.negative(result)))
        builder.emit_func_output(result)
    mod = relax.transform.DeadCodeElimination()(builder.get())
    assert all(func.is_pure for _, func in functions(mod))
    kernels = [f for g, f in mod.functions_items() if g.name_hint == "impossible"]
    assert [kernel.attrs["noted"] for kernel in kernels] == [MESSAGE] * read
    return relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())


def test_it_raises_what_it_is_to_be_raised_as() -> None:
    machine, x = compiled(read=True), tvm.runtime.tensor(np.array(True))
    for error in (Refused, RefusedAgain):
        raised_as(error)
        with pytest.raises(error, match=r"If .node 'it'.: 50 % of it"):
            machine["main"](x)


def test_nothing_is_raised_where_nobody_reads_it() -> None:
    result = compiled(read=False)["main"](tvm.runtime.tensor(np.array(True)))
    np.testing.assert_array_equal(result.numpy(), -np.ones((2, 3), "float32"))
