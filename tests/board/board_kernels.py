"""Many kernels in one library, called by one process of the board between forbidden pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import kernel_harness
import numpy as np
import tvm
from emulated_board import Board, build
from tvm import tirx

from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.hardware import Core
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import schedule_chosen
from tvm_blislike.schedules.lowering import lower as lowering

# DLPack's codes of data types, by NumPy's kind.
_CODES = {"i": 0, "u": 1, "f": 2}


@dataclass(frozen=True)
class Kernel:
    """One kernel to run, and what it should compute.

    Parameters
    ----------
    label : str
        Shown when it fails.
    func : PrimFunc
        Unscheduled, with its choice.
    arguments : sequence of array
        Of floats or integers; the last one is the result and only gives its shape and type.
    error : callable
        Returns the error of a result.
    """

    label: str
    func: tirx.PrimFunc
    arguments: Sequence[np.ndarray]
    error: Callable[[np.ndarray], float]


def errors(
    board: Board, kernels: Sequence[Kernel], core: Core, threads: int, folder: Path
) -> list[float]:
    """Compile for a core, run on the board; return the larger error of two runs of each kernel.

    Raises
    ------
    AssertionError
        When a kernel crashes or writes outside of its result; it names the kernel.
    """
    functions = {f"k{i}": kernel.func for i, kernel in enumerate(kernels)}
    plan = Plan(core, threads)
    scheduled = {
        name: schedule_chosen(func, plan).with_attr("global_symbol", name)
        for name, func in functions.items()
    }
    module = lowering.lower(tvm.IRModule(scheduled))
    return errors_of_module(board, module, kernels, core, threads, folder)


def micro_kernel_errors(
    board: Board, products: Sequence[kernel_harness.Product], core: Core, folder: Path
) -> dict[str, float]:
    """Return the errors of micro-kernels by themselves, by name and use; see `errors`."""
    kernels = [
        Kernel(
            f"{product.kernel.name} {product.shape}",
            kernel_harness.primfunc(product).with_attr("global_symbol", f"k{i}"),
            kernel_harness.arrays(product),
            partial(kernel_harness.error, product),
        )
        for i, product in enumerate(products)
    ]
    module = lowering.lower(tvm.IRModule({f"k{i}": k.func for i, k in enumerate(kernels)}))
    found = errors_of_module(board, module, kernels, core, 1, folder)
    return {kernel.label: error for kernel, error in zip(kernels, found, strict=True)}


def errors_of_module(
    board: Board,
    module: tvm.IRModule,
    kernels: Sequence[Kernel],
    core: Core,
    threads: int,
    folder: Path,
) -> list[float]:
    """Return the errors of functions k0, k1, ... of a module; see `errors`."""
    library = folder / "kernels.so"
    _export(module, core.target_config(threads), library)
    (folder / "cases").write_text("".join(_line(f"k{i}", k) for i, k in enumerate(kernels)))
    with (folder / "data").open("wb") as data:
        for kernel in kernels:
            for argument in kernel.arguments[:-1]:
                data.write(np.ascontiguousarray(argument).tobytes())
    program = folder / "guarded_run"
    build(board, Path(__file__).with_name("guarded_run.cc"), program)
    files = (folder / name for name in ("cases", "data", "results"))
    done = board.run(program, library, *files, threads=threads, check=False)
    assert done.returncode == 0, _explained(done.returncode, done.stderr, kernels)
    return _compared((folder / "results").read_bytes(), kernels)


def _export(module: tvm.IRModule, target: dict[str, Any], path: Path) -> None:
    executable = tvm.compile(module, tvm.target.Target(target))
    compiler = find_compiler(target)
    executable.export_library(str(path), fcompile=lambda *a, **k: link(compiler, *a, **k))


def _line(name: str, kernel: Kernel) -> str:
    shapes = [
        f"{_CODES[a.dtype.kind]} {8 * a.itemsize} {a.ndim} {' '.join(map(str, a.shape))}"
        for a in kernel.arguments
    ]
    return f"{name} {len(shapes)} {' '.join(shapes)}\n"


def _compared(results: bytes, kernels: Sequence[Kernel]) -> list[float]:
    found = []
    for kernel in kernels:
        like = kernel.arguments[-1]
        pair, results = results[: 2 * like.nbytes], results[2 * like.nbytes :]
        both = np.frombuffer(pair, like.dtype).reshape(2, *like.shape)
        found.append(max(_number(kernel.error(_exact(part))) for part in both))
    assert not results
    return found


def _exact(values: np.ndarray) -> np.ndarray:
    """Return values of a type in which errors do not round."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64)


def _number(error: float) -> float:
    return float("inf") if np.isnan(error) else float(error)


def _explained(code: int, messages: str, kernels: Sequence[Kernel]) -> str:
    """Name the kernel that the last line before the end was about."""
    named = [line for line in messages.splitlines() if line.startswith("k") and " at the " in line]
    which = kernels[int(named[-1].split()[0][1:])].label if named else "before the first kernel"
    return f"exit {code} in {which}: {messages[-300:]}"
