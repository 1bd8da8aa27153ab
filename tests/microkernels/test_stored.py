"""Micro-kernels whose B lies in memory in fewer bytes: conversions, products, machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes  # noqa: F401  names bfloat16 for NumPy
import numpy as np
import pytest
import tvm
from kernel_harness import Product, compile_all, primfunc, run
from tvm import te
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.inspect.kernel_code import UNROLL, k_loops
from tvm_blislike.microkernels import (
    STORED_KERNELS,
    UpdateShape,
    byte_codes,
    get_kernel,
    kernels_for,
)
from tvm_blislike.microkernels.avx512_stored import WIDE
from tvm_blislike.microkernels.panels import as_read
from tvm_blislike.microkernels.spills import in_doubt
from tvm_blislike.microkernels.stored import converted
from tvm_blislike.model.types import STORED, Types
from tvm_blislike.tvm_seams.machine_code import count

NATIVE = native_core()
DTYPES = tuple(STORED.values())
# Those that become pairs of bfloat16.
IN_PAIRS = ("float8_e4m3fn", "float8_e5m2")
# e4m3 has no infinities; its NaN is not stored.
WITHOUT_NAN = "float8_e4m3fn"
# Conversions of single elements, and of half precision by functions.
SCALAR = re.compile(
    r"\b(vcvtsi2ss|vcvtss\w*|vcvtsh\w*|vmovd|vpinsr\w|vpextr\w|callq?|bl)\b"
    r"|\b([su]cvtf|fcvt) [swh]\d"
)


def conversion(dtype: str, count: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Return the function (stored, floats) over all numbers of a type."""
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            x = T.match_buffer(T.arg("x", T.handle()), (count,), dtype)
            y = T.match_buffer(T.arg("y", T.handle()), (count,), "float32")
            with T.serial(0, count // lanes) as i:
                at = [T.ramp(i * lanes, 1, lanes)]
                T.buffer_store(y, converted(dtype, x[at[0]], lanes), at)
    return builder.get()


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_are_exact_for_every_number(dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    numbers = np.arange(2**bits, dtype=f"uint{bits}").view(dtype)
    function = conversion(dtype, numbers.size, NATIVE.lanes())
    library = tvm.compile(function, tvm.target.Target(NATIVE.target_config(1)))
    found = tvm.runtime.tensor(np.zeros(numbers.size, np.float32))
    library["main"](tvm.runtime.tensor(numbers), found)
    expected, found = numbers.astype(np.float32), found.numpy()
    if dtype == WITHOUT_NAN:
        assert np.isnan(expected).sum() == 2
        found = np.where(np.isnan(expected), np.float32(np.nan), found)
    same = (expected == found) & (np.signbit(expected) == np.signbit(found))
    assert (same | (np.isnan(expected) & np.isnan(found))).all()


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "float8" in dtype])
def test_tables_are_exact_for_every_number_and_column(dtype: str) -> None:
    offered = kernels_for(NATIVE, Types.stored(dtype))
    by_tables = [kernel for kernel in offered if kernel.product.joined > 1]
    if not by_tables:
        pytest.skip("the present core has no lookups of bytes")
    rng = np.random.default_rng(1)
    for kernel in by_tables:
        # Panels side by side, of all numbers in another order, and the last one cut.
        panels = 256 // kernel.nr + 1
        shape = UpdateShape(1, kernel.mr, 1, 1)
        product = Product(kernel, shape, 1, kernel.mr, panels * kernel.nr - 1, calls=1)
        library = compile_all({"main": primfunc(product)}, NATIVE.target_config(1))
        numbers = rng.permutation(256).astype(np.uint8)
        codes = np.resize(numbers, (1, panels, 1, kernel.nr))
        a = np.ones(product.a_shape, np.float32)
        c = np.zeros((1, kernel.mr, product.n), np.float32)
        out = tvm.runtime.tensor(c)
        library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(codes.view(dtype)), out)
        expected = codes.reshape(-1)[: product.n].view(dtype).astype(np.float32)
        np.testing.assert_array_equal(out.numpy()[0], np.tile(expected, (kernel.mr, 1)))


def with_codes(dtype: str) -> np.ndarray:
    """Return all numbers of a type whose magnitudes are at most those that have codes."""
    numbers = np.arange(256, dtype=np.uint8).view(dtype)
    return numbers[np.abs(numbers.astype(np.float32)) <= byte_codes.most(dtype)]


@pytest.mark.parametrize("dtype", IN_PAIRS)
def test_codes_of_expressions_are_those_of_arrays(dtype: str) -> None:
    numbers = with_codes(dtype)
    x = te.placeholder(numbers.shape, dtype, name="x")
    codes = te.compute(numbers.shape, lambda i: byte_codes.coded_te(dtype, x[i]), name="codes")
    function = te.create_prim_func([x, codes])
    library = tvm.compile(function, tvm.target.Target(NATIVE.target_config(1)))
    found = tvm.runtime.tensor(np.zeros_like(numbers))
    library["main"](tvm.runtime.tensor(numbers), found)
    wanted = byte_codes.coded(numbers).view(np.uint8)
    assert np.array_equal(found.numpy().view(np.uint8), wanted)
    assert len({*wanted.tolist()}) == len(numbers)


@pytest.mark.parametrize("dtype", IN_PAIRS)
def test_numbers_without_a_code_are_named(dtype: str) -> None:
    most = byte_codes.most(dtype)
    next_one = np.array(most, dtype).view(np.uint8) + np.uint8(1)
    for number in (next_one, next_one | np.uint8(128)):
        with pytest.raises(ValueError, match=f"above {most:g}"):
            byte_codes.coded(np.array([number]).view(dtype))


@pytest.mark.parametrize("dtype", IN_PAIRS)
@pytest.mark.parametrize("step", [0, 1])
def test_pairs_of_codes_are_exact_for_every_number_and_column(dtype: str, step: int) -> None:
    offered = kernels_for(NATIVE, Types.brain_by(dtype))
    if not offered:
        pytest.skip("the present core has no products of bfloat16 and lookups of bytes")
    numbers = with_codes(dtype)
    for kernel in offered:
        panels = numbers.size // kernel.nr + 1
        shape = UpdateShape(1, kernel.mr, 1, 1, ks=2)
        product = Product(kernel, shape, 1, kernel.mr, panels * kernel.nr - 1, calls=1)
        library = compile_all({"main": primfunc(product)}, NATIVE.target_config(1))
        shuffled = np.random.default_rng(1).permutation(numbers)
        weights = np.resize(shuffled, (1, panels, 1, kernel.nr, 2))
        a = np.zeros(product.a_shape, "bfloat16")
        a[..., step] = 1
        out = tvm.runtime.tensor(np.zeros((1, kernel.mr, product.n), np.float32))
        panel = as_read(weights.reshape(product.b_shape), 1, kernel.types)
        library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(panel), out)
        expected = weights[..., step].reshape(-1)[: product.n].astype(np.float32)
        np.testing.assert_array_equal(out.numpy()[0], np.tile(expected, (kernel.mr, 1)))


def test_pairs_of_codes_take_four_instructions() -> None:
    zen4 = Core.named("zen4")
    for dtype in IN_PAIRS:
        offered = kernels_for(zen4, Types.brain_by(dtype))
        assert not kernels_for(Core.named("skylake-avx512"), Types.brain_by(dtype))
        for name, loop in k_loops(offered, zen4).items():
            kernel, code = get_kernel(name), [str(instruction) for instruction in loop]
            registers = UNROLL * kernel.nr // 32
            for wanted, each in (("vpermb", 1), ("vpand", 1), ("vpunpck", 2), ("vpermt2b", 0)):
                assert sum(wanted in line for line in code) == each * registers
            assert sum("vdpbf16ps" in line for line in code) == 2 * kernel.mr * registers
            assert count(loop).spills == 0


@pytest.mark.parametrize(
    "types", [*map(Types.stored, DTYPES), *map(Types.brain_by, IN_PAIRS)], ids=str
)
def test_every_kernel_against_numpy(types: Types) -> None:
    cases = {}
    if types not in map(Types.stored, DTYPES) and not kernels_for(NATIVE, types):
        pytest.skip("the present core has no products of bfloat16 and lookups of bytes")
    for number, kernel in enumerate(kernels_for(NATIVE, types)):
        # Whole and cut rows and columns, whole vectors too; steps with and without a tail.
        cut = min(number % 3 * 17, kernel.nr - 1)
        m, n = kernel.mr + number % 2 * (kernel.mr + 1), 2 * kernel.nr - cut
        rows = UpdateShape(1, kernel.mr, 9 + number % 4, UNROLL, ks=kernel.ks)
        window = UpdateShape(1, kernel.mr, 5, 1, view="window")
        cases[f"{kernel.name}_rows"] = Product(kernel, rows, 1, m, n)
        if number % 4 == 0 and kernel.ks == 1:
            cases[f"{kernel.name}_window"] = Product(kernel, window, 1, m, n)
    assert cases
    functions = {name: primfunc(product) for name, product in cases.items()}
    library = compile_all(functions, NATIVE.target_config(1))
    errors = {name: run(library[name], product) for name, product in cases.items()}
    assert {name: error for name, error in errors.items() if not error <= 1} == {}


@pytest.mark.parametrize("name", ["zen3", "zen4", "neoverse-n1", "cortex-a53"])
def test_k_loops_convert_whole_registers_and_spill_nothing(name: str) -> None:
    core = Core.named(name)
    # The largest blocks of each type have least registers to spare.
    offered = [
        kernel
        for dtype in DTYPES
        for kernel in sorted(kernels_for(core, Types.stored(dtype)), key=lambda k: k.registers)[-4:]
    ]
    assert len(offered) == 4 * len(DTYPES)
    for kernel_name, loop in k_loops(offered, core).items():
        kernel, counts = get_kernel(kernel_name), count(loop)
        assert (counts.spills, counts.fmas % (kernel.mr * kernel.vectors)) == (0, 0), kernel_name
        assert not [str(i) for i in loop if SCALAR.search(str(i))], kernel_name


def test_broadcasts_for_conversions_on_avx512_take_no_unit_of_arithmetic() -> None:
    zen4 = Core.named("zen4")
    offered = [k for dtype in DTYPES for k in kernels_for(zen4, Types.stored(dtype)) if k.nr >= 64]
    for name, loop in k_loops(offered, zen4).items():
        kernel, code = get_kernel(name), [str(instruction) for instruction in loop]
        assert not [line for line in code if "vbroadcastss" in line], name
        assert sum("vpbroadcastd" in line for line in code) == UNROLL * kernel.mr


def test_tables_look_up_a_register_of_bytes_twice() -> None:
    zen4, skylake = (Core.named(name) for name in ("zen4", "skylake-avx512"))
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        types = Types.stored(dtype)
        assert all(kernel.product.joined == 1 for kernel in kernels_for(skylake, types))
        wide = [kernel for kernel in kernels_for(zen4, types) if kernel.product.joined > 1]
        assert {(kernel.mr, kernel.nr) for kernel in wide} == {*WIDE}
        for name, loop in k_loops(wide, zen4).items():
            kernel, code = get_kernel(name), [str(instruction) for instruction in loop]
            registers = UNROLL * kernel.nr // 64
            assert sum("vpermt2b" in line or "vpermi2b" in line for line in code) == 2 * registers
            assert sum("vpunpck" in line for line in code) == 6 * registers
            counts = count(loop)
            assert (counts.spills, counts.fmas) == (0, UNROLL * kernel.mr * kernel.vectors)


def test_blocks_leave_registers_for_conversions() -> None:
    assert {kernel.types.b for kernel in STORED_KERNELS} == {*DTYPES}
    assert in_doubt(STORED_KERNELS) == []
    for kernel in STORED_KERNELS:
        assert kernel.types.is_stored or kernel.types.is_bfloat_dot
        assert get_kernel(kernel.name) is kernel


def test_machines_without_the_conversion_of_half_precision_have_no_such_kernels() -> None:
    core = Core.named("haswell")
    lacking = replace(core, mattr=(*core.mattr, "-f16c"))
    for dtype in DTYPES:
        types = Types.stored(dtype)
        assert kernels_for(core, types)
        missing = dtype in ("float16", "float8_e5m2")
        assert (kernels_for(lacking, types) == ()) is missing


def test_types_tell_storage_from_arithmetic() -> None:
    assert not Types.of("float16").is_stored
    assert not Types.of("float32").is_stored
    assert not Types("uint8", "int8", "int32", "int32").is_stored
    names = {Types.stored(dtype).short for dtype in DTYPES}
    assert names == {"f32bf16f32", "f32f16f32", "f32s8f32", "f32e4m3f32", "f32e5m2f32"}
