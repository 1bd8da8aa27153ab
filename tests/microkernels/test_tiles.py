"""Blocks in tile registers: exact for every size, inside their operands, configured once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from guard import GuardedArrays
from kernel_harness import Product, arrays, compile_all, error, primfunc, run
from tvm.runtime import from_dlpack

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.microkernels import GROUPED_KERNELS, UpdateShape, update_intrin
from tvm_blislike.microkernels.tile_loops import (
    TileBlock,
    block_of,
    tile_rows,
)
from tvm_blislike.microkernels.tile_unit import configure_symbol, unit_source

CORE = native_core()
KERNELS = [kernel for kernel in GROUPED_KERNELS if kernel.tiles is not None]
LACKING = {kernel.features for kernel in KERNELS if not {*kernel.features} <= {*CORE.features}}
RUNS = pytest.mark.skipif(bool(LACKING), reason="this machine has no such tiles")
BYTES, PAIRS = (
    tuple(kernel for kernel in KERNELS if kernel.types.a == dtype)
    for dtype in ("uint8", "bfloat16")
)
# Groups of k: less than a tile, one, several, and several with a rest.
DEPTHS = (1, 5, 16, 48, 37)


def products(kernel) -> dict[str, Product]:
    """Whole blocks, and blocks cut to every kind of rows and columns."""
    mr, nr = kernel.mr, kernel.nr
    found = {}
    for number, steps in enumerate(DEPTHS):
        shape = UpdateShape(1, mr, steps, ks=kernel.ks)
        rows = (mr, 2 * mr + 1, mr + tile_rows(mr), 2 * mr - 1, 7)[number]
        for columns in (nr, nr + 5, 2 * nr + 17):
            found[f"{steps}_{rows}_{columns}"] = Product(kernel, shape, 1, rows, columns)
        strided, in_memory = replace(shape, sw=2), replace(shape, in_memory=True)
        found[f"{steps}_strided"] = Product(kernel, strided, 1, rows, nr)
        found[f"{steps}_memory"] = Product(kernel, in_memory, 1, rows, nr + 1)
    for mh in (2, 4):
        if kernel.mr % mh == 0 and kernel.takes(mh):
            shape = UpdateShape(mh, kernel.mr // mh, 21, sh=2, sw=1, ks=kernel.ks)
            columns = kernel.mr // mh
            found[f"rows_{mh}"] = Product(kernel, shape, 2 * mh + 1, columns, nr + 3)
            found[f"cut_rows_{mh}"] = Product(kernel, shape, 2 * mh + 1, 2 * columns - 3, nr)
    return found


@RUNS
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_against_numpy(kernel):
    cases = products(kernel)
    library = compile_all({n: primfunc(p) for n, p in cases.items()}, CORE.target_config(1))
    # Of what rounding may cause; integers are not rounded.
    assert {n: e for n, p in cases.items() if (e := run(library[n], p)) > 1} == {}


@RUNS
def test_nothing_beyond_the_operands_is_read():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def guarded() -> None:
    """Compute with operands that end, or begin, where pages that may not be touched do."""
    kernel = BYTES[-3]
    # Rows of 1, 16 and 20 groups, as many of them as make whole lines; short blocks, and all kinds.
    sizes = ((1, 16), (16, 1), (16, 2 * kernel.mr - 1), (20, 16), (20, kernel.mr + 4), (20, 80))
    for steps, rows in sizes:
        product = Product(kernel, UpdateShape(1, kernel.mr, steps, ks=4), 1, rows, 32, calls=1)
        function = compile_all({"f": primfunc(product)}, CORE.target_config(1))["f"]
        operands = arrays(product)
        for place in ("at_end", "at_start"):
            memory = GuardedArrays()
            copies = []
            for operand in operands:
                words = getattr(memory, place)((operand.nbytes // 4,))
                copy = words.view(operand.dtype).reshape(operand.shape)
                copy[:] = operand
                copies.append(copy)
            function(*map(from_dlpack, copies))
            assert error(product, np.array(copies[-1])) == 0
            memory.check()


@RUNS
@pytest.mark.parametrize(
    "kernel, product, of_vectors",
    [(BYTES[-3], "tdpbusd", "vpdpbusd"), (PAIRS[-3], "tdpbf16ps", "vdpbf16ps")],
    ids=("bytes", "pairs"),
)
def test_the_unit_is_configured_once_and_released(kernel, product: str, of_vectors: str):
    shape = UpdateShape(1, kernel.mr, 48, ks=kernel.ks)
    blocks = Product(kernel, shape, 1, 3 * kernel.mr + 5, 70)
    library = compile_all({"f": primfunc(blocks)}, CORE.target_config(1))
    assembly = library.mod.inspect_source("asm")
    assert assembly.count("ldtilecfg") == assembly.count("tilerelease") == 1
    assert product in assembly
    assert of_vectors not in assembly


def test_they_are_for_cores_with_tiles():
    assert KERNELS
    for kernel in KERNELS:
        assert {*kernel.features} <= {*Core.named("sapphirerapids").features}
        assert not {*kernel.features} & {*Core.named("zen5").features}


def test_blocks_that_have_no_tiles_are_refused():
    kernel = next(k for k in BYTES if (k.mr, k.nr) == (28, 32))
    with pytest.raises(ValueError, match="use the view rows, or window with dw = 1"):
        update_intrin(kernel, UpdateShape(1, 28, 16, view="panel", ks=4))
    with pytest.raises(ValueError, match="has no tiles for the rows of 4 image rows"):
        update_intrin(kernel, UpdateShape(4, 7, 16, ks=4))


def test_symbols_name_their_block():
    loop = KERNELS[0].tiles
    block = TileBlock(2, 14, 32, 14, 32, 37)
    for what in ("zero", "multiply", "store"):
        assert block_of(loop.symbol(what, block)) == (what, loop.name, block)
    assert block_of("blislike_tiles_release") is None
    assert unit_source("blislike_fresh_registers_apart") == ""
    assert "\\0E" in unit_source(configure_symbol(block))


if __name__ == "__main__":
    guarded()
