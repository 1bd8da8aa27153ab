"""Every implementation on the emulated board: random shapes, every epilogue, forbidden pages.

More than 200 random workloads of each, in fp32 and fp16, some 40 minutes on one core:

    TVM_BLISLIKE_TEST_EFFORT=15 pytest tests/board/test_kernels.py tests/board/test_board_half.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from board_kernels import Kernel, errors, errors_of_module
from board_workloads import conv_kernel, random_kernel
from conv_checks import EPILOGUES
from effort import EFFORT, every_second
from emulated_board import Board
from tvm.script import tirx as T

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import all_implementations

CORES = [*("cortex-a72", "cortex-a53", "neoverse-n1", "cortex-a57"), *("carmel", "cortex-a76")]
CORE = Core.named(CORES[0])
OWN = [implementation.name for implementation in all_implementations()]
# Winograd's own bound is checked by its tests here; what is wrong is off by much more.
TOLERANCE = {"conv2d_winograd": 2e-4, "conv2d_winograd_1d": 2e-4}


@pytest.mark.parametrize("repeat", range(EFFORT))
@pytest.mark.parametrize("name", OWN)
def test_random_workloads_agree_with_numpy(
    name: str, repeat: int, board: Board, tmp_path: Path
) -> None:
    position = OWN.index(name)
    core = Core.named(CORES[(position + repeat) % len(CORES)])
    threads = 1 + (position + repeat // len(CORES)) % 2
    implementation = next(i for i in all_implementations() if i.name == name)
    kernels = [
        random_kernel(implementation, core, threads, steps, 1000 * position + 50 * repeat + i)
        for i, steps in every_second(list(enumerate(EPILOGUES)), position)
    ]
    found = errors(board, kernels, core, threads, tmp_path)
    wrong = {
        kernel.label: error
        for kernel, error in zip(kernels, found, strict=True)
        if not error <= TOLERANCE.get(name, 2e-5)
    }
    assert not wrong


@pytest.mark.parametrize("core", ["cortex-a53", "cortex-a72"])
def test_tiles_that_are_packed_as_they_are_needed_may_be_cut(
    core: str, board: Board, tmp_path: Path
) -> None:
    """The last tile of pixels has a panel of its own, which k loops that are functions read."""
    implementation = next(i for i in all_implementations() if i.name == "conv2d_im2col")
    cases = [
        *((4, 5, 8, 8, "", "IS"), (4, 5, 8, 12, "", "IS"), (4, 4, 8, 12, "", "WS")),
        *((4, 6, 8, 12, "", "IS"), (4, 5, 8, 8, "filters", "IS"), (2, 6, 8, 8, "", "IS")),
        *((4, 4, 6, 12, "", "IS"), (4, 4, 4, 12, "", "IS")),
    ]
    kernels = []
    for h, w, mr, nr, columns, order in cases:
        config = Im2colConfig(
            mr=mr,
            nr=nr,
            mc=-(-32 // (nr if columns else mr)) * (nr if columns else mr),
            kc=64,
            loop_order=order,
            packing="tile",
            columns=columns,
            oh_block=h,
        )
        workload = Conv2dWorkload(1, 64, h, w, 32, 1, 1)
        kernels.append(conv_kernel(implementation, workload, config, ["bias"]))
    found = errors(board, kernels, Core.named(core), 1, tmp_path)
    assert max(found) <= 2e-5


@T.prim_func
def _reads_a_page_too_far(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
    T.func_attr({"global_symbol": "k0"})
    whole = T.decl_buffer((4096,), "float32", data=a.data)
    for i in range(16):
        b[i] = whole[i + 2048]


@T.prim_func
def _writes_one_too_many(a: T.Buffer((15,), "float32"), b: T.Buffer((15,), "float32")):
    T.func_attr({"global_symbol": "k0"})
    whole = T.decl_buffer((16,), "float32", data=b.data)
    for i in range(16):
        whole[i] = T.float32(1)


@T.prim_func
def _leaves_one_out(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
    T.func_attr({"global_symbol": "k0"})
    for i in range(15):
        b[i] = a[i]


@pytest.mark.parametrize(
    ("func", "message"),
    [(_reads_a_page_too_far, "in the label"), (_writes_one_too_many, "beyond the end")],
)
def test_guards_do_guard(
    func: tvm.tirx.PrimFunc, message: str, board: Board, tmp_path: Path
) -> None:
    kernel = _kernel(func)
    with pytest.raises(AssertionError, match=message):
        errors_of_module(board, tvm.IRModule({"k0": func}), [kernel], CORE, 1, tmp_path)


def test_what_is_not_written_is_an_error(board: Board, tmp_path: Path) -> None:
    kernel, module = _kernel(_leaves_one_out), tvm.IRModule({"k0": _leaves_one_out})
    assert errors_of_module(board, module, [kernel], CORE, 1, tmp_path) == [float("inf")]


def _kernel(func: tvm.tirx.PrimFunc) -> Kernel:
    shape = [int(extent) for extent in func.params[0].shape]
    values = np.ones(shape, np.float32)
    return Kernel("the label", func, [values, values], lambda result: np.abs(result - values).max())
