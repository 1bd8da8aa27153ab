"""What TVM's executables are made of, and how libraries are opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from small_kernels import doubled, executable
from tvm import relax

from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.tvm_seams import executables, loaded


@pytest.fixture(scope="module")
def built() -> tuple[tvm.IRModule, tvm.runtime.Executable]:
    return executable()


@pytest.fixture(scope="module")
def library(built: tuple[tvm.IRModule, tvm.runtime.Executable], tmp_path_factory) -> Path:
    """A library with a text in it."""
    path = tmp_path_factory.mktemp("library") / "library.so"
    module = executables.module_of(executable()[1])
    for text in (b"the text", b"put twice"):
        executables.add_text(module, "note", text)
    compiler = find_compiler({"mtriple": tvm.target.Target("llvm").attrs["mtriple"]})
    module.export_library(str(path), fcompile=lambda *a, **k: link(compiler, *a, **k))
    return path


def result_of(runs: object) -> np.ndarray:
    machine = relax.VirtualMachine(runs, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(np.ones((64, 64), "float32"))).numpy()


def test_a_second_executable_computes_the_same(
    built: tuple[tvm.IRModule, tvm.runtime.Executable],
) -> None:
    lowered, whole = built
    second = executables.calling(lowered, whole.mod.imports)
    np.testing.assert_array_equal(result_of(second), np.full((64, 64), 3.0, "float32"))
    assert executables.code_of(second) == executables.code_of(whole)


def test_texts_travel_inside_a_library(
    built: tuple[tvm.IRModule, tvm.runtime.Executable], library: Path
) -> None:
    module = loaded.open_library(library)
    assert loaded.text_in(module, "note") == b"the text"
    assert loaded.text_in(module, "other") is None
    np.testing.assert_array_equal(result_of(module), np.full((64, 64), 3.0, "float32"))
    assert executables.is_exportable(executables.module_of(built[1]))
    assert not executables.is_exportable(module)


def test_a_library_goes_with_the_last_reference(library: Path) -> None:
    def is_loaded() -> bool:
        return library.name in Path("/proc/self/maps").read_text()

    fresh = library.with_name("fresh.so")
    fresh.write_bytes(library.read_bytes())
    library = fresh
    module = loaded.open_library(fresh)
    assert is_loaded() or not Path("/proc/self/maps").exists()
    del module
    assert not is_loaded(), "`load_module` keeps libraries that nothing refers to"


def test_code_is_there_until_a_model_is_written(
    built: tuple[tvm.IRModule, tvm.runtime.Executable], library: Path
) -> None:
    assert "define" in executables.code_of(built[1])
    assert "ret" in executables.code_of(built[1], "asm")
    assert "define" in executables.code_of(tvm.compile(doubled(), "llvm"))
    assert executables.code_of(loaded.open_library(library)) is None


def test_what_only_python_has_is_named() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(relax.op.nonzero(data)))
    found = tvm.compile(builder.get(), tvm.target.Target("llvm"))
    assert executables.functions_of_python(found) == ["nonzero"], (
        "the text of an executable differs"
    )
    assert executables.functions_of_python(executable()[1]) == []
