"""TVM's runtime library runs models without its compiler, which may be imported later all the same.

What other modules do with libraries is tested in `test_executables.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from small_kernels import executable
from tvm import s_tir, te, tirx

from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.runtime.arrays import ALIGNMENT, array_of
from tvm_blislike.tvm_seams import executables, loaded, tapes

ONES = np.ones((64, 64), "float32")

RUN = """
import sys
from pathlib import Path
import numpy as np
from tvm_blislike.runtime.arrays import array_of
from tvm_blislike.tvm_seams import loaded

folder = Path(sys.argv[1])
kernels = loaded.open_library(folder / "kernels.so")
machine = loaded.VirtualMachine(loaded.read_machine(folder / "machine.bin", kernels))
x = loaded.empty((64, 64), "float32")
loaded.fill(x, np.ones((64, 64), "float32"))
before = machine["main"](x)
assert (array_of(before) == 3).all() and machine.loop is not None
assert "tvm" not in sys.modules

import tvm
after = machine["main"](tvm.runtime.tensor(np.ones((64, 64), "float32")))
assert isinstance(after, tvm.runtime.Tensor) and (after.numpy() == 3).all()
assert (loaded.numpy_of(before) == 3).all() and (array_of(before) == 3).all()
"""


def test_it_runs_what_was_written_and_tvm_may_come_later(tmp_path: Path) -> None:
    built = executable()[1]
    compiler = find_compiler({"mtriple": tvm.target.Target("llvm").attrs["mtriple"]})
    objects = [str(tmp_path / f"{i}.o") for i in range(2)]
    for part, path in zip(executables.code_parts(built), objects, strict=True):
        part.write_to_file(path)
    link(compiler, str(tmp_path / "kernels.so"), objects)
    executables.write_machine(built, tmp_path / "machine.bin")
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_machine_of_compiled_code_has_no_loop_of_a_library() -> None:
    machine = loaded.VirtualMachine(executable()[1])
    assert machine.loop is None
    assert (array_of(machine["main"](tvm.runtime.tensor(ONES))) == 3).all()


def test_code_is_made_at_the_first_look_into_what_uses_threads() -> None:
    def scaled(factor: int) -> tirx.PrimFunc:
        data = te.placeholder((64,), name="data")
        result = te.compute((64,), lambda i: tirx.exp(data[i] * float(factor)), name="y")
        sch = s_tir.Schedule(te.create_prim_func([data, result]))
        sch.parallel(sch.get_loops(sch.get_sblock("y"))[0])
        return sch.mod["main"].with_attr("global_symbol", f"scaled{factor}")

    funcs = {f"scaled{factor}": scaled(factor) for factor in range(40)}
    module = tvm.compile(tvm.IRModule(funcs), tvm.target.Target("llvm")).mod
    started = time.thread_time()
    loaded.make_code(module)
    making = time.thread_time() - started
    assert module.get_function("scaled3") is not None
    loaded.make_code(module)
    assert time.thread_time() - started < 1.5 * making, "LLVM makes code at another time"


def test_only_compiled_models_have_generated_code() -> None:
    whole = executable()[1]
    assert len(loaded.generated(whole)) == len(loaded.generated(whole.mod)) == 1
    assert loaded.generated(tapes.loop_module()) == []


def test_an_error_of_the_machine_is_not_hidden() -> None:
    with pytest.raises(Exception, match="vm_load_executable"):
        loaded.VirtualMachine(tapes.loop_module())


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "float16", "bfloat16"])
def test_tensors_are_aligned_and_take_what_arrays_hold(dtype: str) -> None:
    tensor = loaded.empty((3, 5), dtype)
    values = np.arange(30).reshape(3, 10)[:, ::2].astype(array_of(tensor).dtype)
    loaded.fill(tensor, values)
    assert tensor.data_ptr() % ALIGNMENT == 0
    np.testing.assert_array_equal(array_of(tensor), values)
    np.testing.assert_array_equal(loaded.numpy_of(tensor), values)


def test_an_array_of_another_size_is_refused() -> None:
    with pytest.raises(Exception, match=r"size|bytes"):
        loaded.fill(loaded.empty((3, 5), "float32"), np.zeros((3, 6), "float32"))


def test_errors_are_raised_as_told() -> None:
    assert loaded.function("ffi.Module.load_from_file.relax.VMExecutable") is not None
    with pytest.raises(ValueError, match=r"no\.such\.function"):
        loaded.function("no.such.function")
    assert isinstance(loaded.empty((1,), "int8"), tvm_ffi.Tensor)
