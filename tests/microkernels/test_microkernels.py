"""Every listed micro-kernel that this machine runs against numpy, at and around its tile."""

from __future__ import annotations

from typing import Any

import pytest
from effort import every_second
from kernel_harness import Product, compile_all, primfunc, run

from tvm_blislike.hardware import Core, avx2, native_core
from tvm_blislike.microkernels import (
    BIT_KERNELS,
    GROUPED_KERNELS,
    HALF_KERNELS,
    KERNELS,
    Microkernel,
    UpdateShape,
    get_kernel,
    kernels_for,
    update_intrin,
)
from tvm_blislike.microkernels.intrin import shape_named
from tvm_blislike.model.types import Types

NATIVE = native_core()
# A core that can run AVX-512 runs AVX2 as well.
AVX2 = Core.named("x86-64-v3").target_config(1)
TARGETS = {"avx512": {"avx512": NATIVE.target_config(1), "avx2": AVX2}}.get(
    NATIVE.isa.name, {NATIVE.isa.name: NATIVE.target_config(1)}
)
LLVM_FEATURES = {feature.name: feature.llvm for feature in avx2.ISA.features}
RUNNABLE = [
    kernel
    for kernel in (*KERNELS, *HALF_KERNELS, *GROUPED_KERNELS, *BIT_KERNELS)
    if kernel.isa.name in TARGETS
    and {*kernel.features} <= {*NATIVE.features}
    # Those in tile registers have uses and sizes of their own: `test_tiles`.
    and kernel.tiles is None
]
NAMES = [kernel.name for kernel in RUNNABLE]
CORES = {core.isa.name: core for core in map(Core.named, ("zen4", "haswell", "cortex-a72"))}
UNROLL = 4
PRIME_ROWS, PRIME_COLUMNS, PRIME_K = 31, 37, 13


def around(size: int, prime: int) -> list[int]:
    """One, the tile and its neighbours, and a prime."""
    return [size - 1 or size, size + 1, size, 1, prime]


def sizes(kernel: Microkernel) -> list[tuple[int, int, int]]:
    """(m, n, k), every size of `around` once for each."""
    rows = around(kernel.mr, PRIME_ROWS)
    columns = around(kernel.nr, PRIME_COLUMNS)
    steps = around(UNROLL, PRIME_K)
    # Cut rows meet cut columns; the orders differ so that not all are whole or cut at once.
    return [(rows[i], columns[(2 * i) % 5], steps[(3 * i + 1) % 5]) for i in range(5)]


def products(kernel: Microkernel) -> dict[str, Product]:
    """The products to run, by name."""
    found = {}
    for number, (m, n, k) in enumerate(sizes(kernel)):
        row = {"mh": 1, "mw": kernel.mr, "steps": k, "ks": kernel.ks}
        views = {
            "rows": UpdateShape(**row, unroll=UNROLL, sw=1 + number % 2),
            "window": UpdateShape(**row, unroll=1, view="window", sw=2, dw=1 + number % 2),
            "memory": UpdateShape(**row, unroll=UNROLL, in_memory=True),
            "panel": UpdateShape(**row, unroll=UNROLL, view="panel"),
        }
        # The plainest view at every size, the others in turn.
        turn = ("window", "memory", "panel")
        # Overlapping windows begin with any element.
        other = turn[number % 3] if kernel.ks == 1 else turn[1 + number % 2]
        for view in ("rows", other):
            found[f"{view}_{m}_{n}_{k}"] = Product(kernel, views[view], 1, m, n)
    return {**found, **image_products(kernel)}


def image_products(kernel: Microkernel) -> dict[str, Product]:
    """Blocks of several image rows, cut along both axes."""
    heights = [mh for mh in range(2, kernel.mr + 1) if kernel.mr % mh == 0]
    if not heights:
        return {}
    mh = heights[0]
    mw = kernel.mr // mh
    rows = UpdateShape(mh, mw, 5, UNROLL, sh=2, sw=2, ks=kernel.ks)
    found = {"image_rows": Product(kernel, rows, mh + 1, mw + 1, kernel.nr + kernel.lanes)}
    if kernel.ks == 1:
        window = UpdateShape(mh, mw, 5, 1, "window", sh=1, sw=2)
        found["image_window"] = Product(kernel, window, 2 * mh - 1, 2 * mw, kernel.nr)
    return found


def target_of(kernel: Microkernel) -> dict[str, Any]:
    """The target of an instruction set with the extensions of a kernel."""
    config = TARGETS[kernel.isa.name]
    if config is not AVX2:
        return config
    return {**config, "mattr": [f"+{LLVM_FEATURES[name]}" for name in kernel.features]}


@pytest.mark.parametrize("number, kernel", enumerate(RUNNABLE), ids=NAMES)
def test_against_numpy(number: int, kernel: Microkernel):
    # Neighbours in the list, which differ by a row or a vector, have one half of the products each.
    cases = dict(every_second(list(products(kernel).items()), number))
    library = compile_all({n: primfunc(p) for n, p in cases.items()}, target_of(kernel))
    errors = {name: run(library[name], product) for name, product in cases.items()}
    assert {name: error for name, error in errors.items() if not error <= 1} == {}


def test_names_tell_shapes_apart_and_find_kernels():
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    for kernel in KERNELS:
        assert get_kernel(kernel.name) is kernel
        assert kernel in kernels_for(CORES[kernel.isa.name], kernel.types, panels=True)
        assert kernel.nr % kernel.lanes == 0
    assert get_kernel("avx512_f32_14x32").mr == 14
    with pytest.raises(KeyError, match="avx512_f32_99x16"):
        get_kernel("avx512_f32_99x16")
    assert kernels_for(Core.named("zen4"), Types.of("int8")) == ()


def test_rows_of_the_shape_must_be_those_of_the_kernel():
    with pytest.raises(ValueError, match="14 rows, not 2 x 8"):
        update_intrin(get_kernel("avx512_f32_14x32"), UpdateShape(2, 8, 16))


def test_intrinsic_is_registered_once_per_use():
    kernel = get_kernel("avx512_f32_14x32")
    uses = [
        UpdateShape(1, 14, 16),
        UpdateShape(2, 7, 16),
        UpdateShape(1, 14, 12),
        UpdateShape(1, 14, 16, unroll=2),
        UpdateShape(1, 14, 16, sw=2),
        UpdateShape(1, 14, 16, sh=2),
        UpdateShape(1, 14, 16, view="window"),
        UpdateShape(1, 14, 16, view="window", dw=2),
        UpdateShape(1, 14, 16, view="panel"),
        UpdateShape(1, 14, 16, in_memory=True),
    ]
    names = [update_intrin(kernel, use) for use in uses]
    grouped, pairs = get_kernel("avx512_bf16f32_14x32x2"), UpdateShape(1, 14, 16, ks=2)
    assert shape_named(update_intrin(grouped, pairs)) == (grouped.name, pairs)
    assert len(set(names)) == len(uses)
    assert names == [update_intrin(kernel, use) for use in uses]
    assert [shape_named(name) for name in names] == [(kernel.name, use) for use in uses]


def test_names_of_intrinsics_tell_memory_and_order():
    kernel = get_kernel("neon_f16_8x24")
    uses = [
        UpdateShape(1, 8, 16, in_memory=in_memory, in_order=in_order)
        for in_memory in (False, True)
        for in_order in (False, True)
    ]
    named = [shape_named(update_intrin(kernel, use)) for use in uses]
    assert named == [(kernel.name, use) for use in uses]
    assert shape_named("blislike_none_of_ours") is None
