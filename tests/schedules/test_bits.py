"""Words of signs: matrix products and convolutions that count bits, exact to the last one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from conv_harness import compiled, in_layout, nchw, primfunc
from conv_workloads import NATIVE

from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.types import BITS
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.operators import operator_of
from tvm_blislike.runtime.runnable import why_not_runnable
from tvm_blislike.schedules import all_implementations, get_implementation
from tvm_blislike.tuning.kernels import CandidateGroup, build

CORES = [
    core
    for core in (NATIVE, Core.named("x86-64-v3"))
    if kernels_for(core, BITS) and why_not_runnable(core.target_config(1)) is None
]
SAME, NOTHING = (1, 1, 1, 1), -77
# Channels in words of 32.
CONVOLUTIONS = {
    "one word": Conv2dWorkload(1, 1, 1, 1, 1, 1, 1),
    "a word by pixel, rows": Conv2dWorkload(1, 1, 9, 11, 24, 3, 3, padding=SAME),
    "rows, stride": Conv2dWorkload(2, 2, 13, 15, 64, 3, 3, (2, 2), SAME),
    "more padding than kernel": Conv2dWorkload(1, 3, 4, 4, 17, 3, 3, padding=(5, 4, 3, 6)),
    "dilated": Conv2dWorkload(1, 3, 14, 15, 20, 3, 3, (1, 1), SAME, (2, 2)),
    "in place": Conv2dWorkload(1, 4, 9, 11, 80, 1, 1),
    "in place, 3x3, stride": Conv2dWorkload(1, 5, 9, 11, 33, 3, 3, (1, 2)),
    "groups": Conv2dWorkload(1, 6, 9, 11, 32, 3, 3, padding=SAME, groups=2),
    "many words": Conv2dWorkload(1, 16, 7, 7, 48, 3, 3, padding=SAME),
}
PRODUCTS = [(1, 1, 1), (1, 70, 3), (5, 16, 2), (7, 9, 5), (37, 53, 31), (64, 64, 18)]


def some(configs: list[Config], count: int) -> list[Config]:
    return configs[:: max(1, len(configs) // count)][:count]


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.isa.name)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, core: Core) -> None:
    workload = replace(CONVOLUTIONS[name], types=BITS)
    direct, operator = get_implementation("conv2d_direct"), operator_of(workload)
    data, weights = operator.random(workload)
    expected = operator.reference(workload, data, weights)
    for config in some(list(direct.configs(workload, core, 1)), 3):
        library = compiled(primfunc(workload, config, ()), core, 1)
        shape = Layout(config.out_layout).shape(*workload.images[1])
        arrays = [in_layout(data, config.data_layout), direct.pack(workload, config, weights)]
        arrays.append(np.full(shape, NOTHING, "int32"))
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
        library["main"](*tensors)
        got = nchw(tensors[-1].numpy(), config.out_layout, workload.co)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.isa.name)
@pytest.mark.parametrize("m, n, k", PRODUCTS)
def test_products_of_matrices(m: int, n: int, k: int, core: Core) -> None:
    workload, gemm = GemmWorkload(m, n, k, types=BITS), get_implementation("gemm")
    operator = operator_of(workload)
    a, b = operator.random(workload)
    expected = operator.reference(workload, a, b)
    configs = some(list(gemm.configs(workload, core, 1)), 3)
    configs += [configs[0].with_fields(kc=2)] if k > 2 else []
    group = CandidateGroup(workload, tuple(configs), core, 1)
    library = build(group)
    for number, config in enumerate(configs):
        out = np.full(workload.result_shape, NOTHING, np.int32)
        tensors = [tvm.runtime.tensor(x) for x in (a, gemm.pack(workload, config, b), out)]
        library[f"candidate_{number}"](*tensors)
        np.testing.assert_array_equal(tensors[-1].numpy(), expected)


def test_references_are_those_of_signs() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**32, shape, "uint32") for shape in ((3, 2), (2, 5)))
    signs = [
        1 - 2 * np.array([[word >> bit & 1 for word in row for bit in range(32)] for row in rows])
        for rows in (a.astype(int), b.T.astype(int))
    ]
    workload = GemmWorkload(3, 5, 2, types=BITS)
    counts = operator_of(workload).reference(workload, a, b)
    np.testing.assert_array_equal(64 - 2 * counts, signs[0] @ signs[1].T)


def test_nothing_else_takes_words_for_numbers() -> None:
    for core in CORES:
        for shape in (CONVOLUTIONS["many words"], replace(CONVOLUTIONS["groups"], groups=6, co=6)):
            workload = replace(shape, types=BITS)
            others = [
                each.name
                for each in all_implementations()
                if each.kind == "conv2d" and not each.applies(workload, core)
            ]
            assert set(others) <= {"conv2d_direct"}


def test_rows_of_pixels_are_one_run_of_words() -> None:
    core, workload = Core.named("zen4"), replace(CONVOLUTIONS["rows, stride"], types=BITS)
    config = next(iter(get_implementation("conv2d_direct").configs(workload, core, 1)))
    geo = DirectGeometry(workload, config)
    assert (geo.by_row, geo.run, geo.run_groups, geo.k_groups) == (True, 6, 6, 18)
