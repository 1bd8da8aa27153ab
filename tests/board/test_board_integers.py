"""Products of 8 bits and of signs on the emulated board: micro-kernels, implementations, exact."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_kernels import Kernel, errors, micro_kernel_errors
from board_workloads import chosen, random_workload
from conv_harness import in_layout, nchw, primfunc
from effort import EFFORT, in_turn
from emulated_board import Board
from kernel_harness import Product
from tvm import te

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import BITS, Types
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import operator_of
from tvm_blislike.schedules import get_implementation

# With products of matrices, with dot products, and without; what the emulator calls them.
CORES = {
    "neoverse-v1": "max",
    "cortex-a76": "cortex-a76",
    "cortex-a72": "cortex-a72",
    "cortex-a53": "cortex-a53",
}
# Signs of A and B that models on boards do not have, but instructions.
SIGNS = (("uint8", "int8"), ("uint8", "uint8"))
# Of bytes, and of signs.
IMPLEMENTATIONS = [
    *((name, False) for name in ("gemm", "conv2d_direct", "conv2d_dataflow")),
    *((name, True) for name in ("gemm", "conv2d_direct")),
]
WORKLOADS = 6
# Steps of k: fewer and more than a vector of A holds, and several iterations.
STEPS = (3, 13, 4, 1, 8)


def _product(kernel: Microkernel, number: int) -> Product:
    """Blocks cut along rows and columns; the ways that A and C lie in memory take turns."""
    row = {"mh": 1, "mw": kernel.mr, "steps": STEPS[number % len(STEPS)], "ks": kernel.ks}
    shapes = [UpdateShape(**row, view="panel"), UpdateShape(**row, view="panel", in_order=True)]
    if not kernel.panels_only:
        shapes += [UpdateShape(**row, in_memory=True), UpdateShape(**row, sw=2)]
        mh = next((mh for mh in range(2, kernel.mr + 1) if kernel.mr % mh == 0), 1)
        shapes.append(UpdateShape(mh, kernel.mr // mh, row["steps"], sh=2, sw=2, ks=kernel.ks))
    shape = shapes[number // len(STEPS) % len(shapes)]
    rows = shape.mh + (shape.mh > 1), shape.mw + max(1, shape.mw // 2)
    return Product(kernel, shape, *rows, kernel.nr + 3)


@pytest.mark.parametrize("name, bits", in_turn(list(CORES), (False, True)))
def test_micro_kernels_agree_with_numpy(
    name: str, bits: bool, board: Board, tmp_path: Path
) -> None:
    core = Core.named(name)
    offered = kernels_for(core, BITS if bits else quantized_types(core), panels=True)
    products = [_product(kernel, number) for number, kernel in enumerate(offered)]
    # The board knows no instruction that the core lacks.
    like = replace(board, cpu=CORES[name])
    found = micro_kernel_errors(like, products, core, tmp_path)
    assert {label: error for label, error in found.items() if error} == {}


@pytest.mark.parametrize("a, b", SIGNS)
def test_products_of_matrices_of_all_signs(a: str, b: str, board: Board, tmp_path: Path) -> None:
    core = Core.named("neoverse-v1")
    offered = kernels_for(core, Types(a, b, "int32", "int32"), panels=True)
    assert {kernel.features for kernel in offered} == {("i8mm",)}
    products = [_product(kernel, number) for number, kernel in enumerate(offered)]
    found = micro_kernel_errors(board, products, core, tmp_path)
    assert {label: error for label, error in found.items() if error} == {}


@pytest.mark.parametrize("repeat", range(EFFORT))
@pytest.mark.parametrize("implementation, bits", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", CORES)
def test_random_workloads_agree_with_numpy(
    name: str, implementation: str, bits: bool, repeat: int, board: Board, tmp_path: Path
) -> None:
    core = Core.named(name)
    types = BITS if bits else quantized_types(core)
    drawn = _workloads(get_implementation(implementation), core, types, random.Random(repeat))
    kernels = [_kernel(workload, config) for workload, config in drawn]
    found = errors(replace(board, cpu=CORES[name]), kernels, core, 1, tmp_path)
    assert {k.label: e for k, e in zip(kernels, found, strict=True) if e} == {}


def _workloads(
    implementation: Implementation, core: Core, types: Types, rng: random.Random
) -> Iterator[tuple[Workload, Config]]:
    """Yield workloads of integers, each with a configuration worth an estimate."""
    left = WORKLOADS
    while left:
        workload = random_workload(implementation, rng)
        workload = workload and replace(workload, types=types)
        if workload is None or implementation.applies(workload, core):
            continue
        if configs := list(implementation.configs(workload, core, 1)):
            left -= 1
            yield workload, rng.choice(configs)


def _kernel(workload: Workload, config: Config) -> Kernel:
    """Return a kernel of random integers; any difference is an error."""
    operator, implementation = operator_of(workload), get_implementation(config.implementation)
    a, b = operator.random(workload)
    wanted = operator.reference(workload, a, b)
    packed = implementation.pack(workload, config, b)
    if implementation.kind == "gemm":
        operands = [te.placeholder(x.shape, x.dtype.name) for x in (a, packed)]
        result = implementation.compute(workload, config, *operands)
        func = chosen(workload, config, [*operands, result])
        arguments = [a, packed, np.empty(wanted.shape, np.int32)]
        return Kernel(f"{workload} {config}", func, arguments, lambda c: _differs(c, wanted))
    placed = in_layout(wanted, config.out_layout)

    def error(c: Any) -> float:
        return _differs(nchw(c, config.out_layout, workload.co), wanted)

    arguments = [in_layout(a, config.data_layout), packed, np.empty(placed.shape, np.int32)]
    return Kernel(f"{workload} {config}", primfunc(workload, config, ()), arguments, error)


def _differs(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted.astype(np.int64)).max())
