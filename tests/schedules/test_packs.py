"""Stores of requantized sums joined by packs that saturate: the same bytes, where ranges allow."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from effort import examples  # noqa: E402
from guard import GuardedArrays  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tvm_blislike.cost_models.requantizing import INSTRUCTIONS, pieces  # noqa: E402
from tvm_blislike.hardware import Core  # noqa: E402
from tvm_blislike.model.directives import Vector, WriteOut  # noqa: E402
from tvm_blislike.model.marks import ISA, REGISTER_BYTES  # noqa: E402
from tvm_blislike.passes.constant_ranges import with_ranges  # noqa: E402
from tvm_blislike.runtime.runnable import why_not_runnable  # noqa: E402
from tvm_blislike.schedules.lowering.lower import lower  # noqa: E402

SYMBOL = "blislike_packs_"
CORES = {name: Core.named(name) for name in ("skylake-avx512", "x86-64-v3")}
RUN = [name for name, core in CORES.items() if why_not_runnable(core.target_config(1)) is None]
REGISTERS = 2048


@dataclass(frozen=True)
class Epilogue:
    """Sums of rows become bytes: `clip(round(sums * scale [+ term / 4]) + zero, low, high)`."""

    rows: int
    columns: int
    dtype: str = "uint8"
    zero: int = 0
    # Of how much the bounds are inside those of the type.
    cut: tuple[int, int] = (0, 0)
    per_channel: bool = True
    adds: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        ends = np.iinfo(self.dtype)
        return ends.min + self.cut[0], ends.max - self.cut[1]

    def primfunc(self) -> tirx.PrimFunc:
        """Return the function (sums, scale, term, y)."""
        shape = (self.rows, self.columns)
        sums = te.placeholder(shape, "int32", name="sums")
        scale = te.placeholder((self.columns if self.per_channel else 1,), name="scale")
        term = te.placeholder(shape, "uint8", name="term")

        def f32(value: float) -> tirx.Expr:
            return tirx.const(float(value), "float32")

        def at(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            real = sums[i, j].astype("float32") * scale[j if self.per_channel else 0]
            real = real + term[i, j].astype("float32") * f32(0.25) if self.adds else real
            whole = tirx.nearbyint(real)
            whole = whole + f32(self.zero) if self.zero else whole
            low, high = map(f32, self.bounds)
            return te.max(te.min(whole, high), low).astype(self.dtype)

        return te.create_prim_func([sums, scale, term, te.compute(shape, at, name="y")])

    def expected(self, sums: np.ndarray, scale: np.ndarray, term: np.ndarray) -> np.ndarray:
        real = sums.astype(np.float32) * scale
        real = real + term.astype(np.float32) / np.float32(4) if self.adds else real
        whole = np.rint(real.astype(np.float64)) + self.zero
        return np.clip(whole, *self.bounds).astype(self.dtype)


def loops(epilogue: Epilogue, core: str, scale: np.ndarray | None) -> tvm.IRModule:
    """Return the lowered function, which is told of a scale that is a constant."""
    described = CORES[core]
    sch = s_tir.Schedule(epilogue.primfunc())
    row, column = sch.get_loops(sch.get_sblock("y"))
    WriteOut().on(sch, row)
    Vector(described.vector_bits // 32).on(sch, column)
    func = with_ranges(sch.mod["main"], [[None, scale, None]])
    marks = {REGISTER_BYTES: REGISTERS, ISA: described.isa.name, "global_symbol": "main"}
    return lower(tvm.IRModule({"main": func.with_attr({**marks, "tirx.noalias": True})}))


def joined(mod: tvm.IRModule) -> int:
    return str(mod["main"].body).count(SYMBOL)


def library(mod: tvm.IRModule, core: str) -> tvm.runtime.Executable:
    return tvm.compile(mod, tvm.target.Target(CORES[core].target_config(1)))


def operands(epilogue: Epilogue, seed: int, most: float = 0.9999) -> list[np.ndarray]:
    """Return sums at all ends, ties, and scales from tiny ones to the largest that are proven."""
    rng = np.random.default_rng(seed)
    shape = (epilogue.rows, epilogue.columns)
    channels = epilogue.columns if epilogue.per_channel else 1
    if epilogue.adds:
        # Products and sums are exact: it is the same whether LLVM makes one instruction of them.
        sums = rng.integers(-(2**12), 2**12, shape)
        scale = rng.choice([2.0**-7, 2.0**-4, 0.375, 0.5], channels)
    else:
        small, ends = rng.integers(-600, 600, shape), rng.choice([-(2**31), 2**31 - 1], shape)
        any_sum = rng.integers(-(2**31), 2**31, shape)
        sums = np.choose(rng.integers(0, 3, shape), [small, any_sum, ends])
        scale = rng.choice([most, 0.5, 0.11, 1e-3, 1e-7, 2e-38, -0.25], channels)
    term = rng.integers(0, 256, shape)
    return [sums.astype(np.int32), scale.astype(np.float32), term.astype(np.uint8)]


def result(mod: tvm.IRModule, core: str, epilogue: Epilogue, given: list) -> np.ndarray:
    out = tvm.runtime.tensor(np.full((epilogue.rows, epilogue.columns), 77, epilogue.dtype))
    library(mod, core)["main"](*map(tvm.runtime.tensor, given), out)
    return out.numpy()


EPILOGUES = st.builds(
    Epilogue,
    rows=st.integers(1, 7),
    columns=st.sampled_from([1, 8, 16, 24, 31, 32, 33, 40, 48, 64, 96, 100, 128]),
    dtype=st.sampled_from(["uint8", "int8"]),
    zero=st.sampled_from([0, 1, 3, 128, 255, -1, -128]),
    cut=st.sampled_from([(0, 0), (3, 0), (0, 50), (128, 1)]),
    per_channel=st.booleans(),
    adds=st.booleans(),
)


@pytest.mark.parametrize("core", RUN)
@examples(40)
@given(EPILOGUES, st.integers(0, 2**32))
def test_the_bytes_are_right(core: str, epilogue: Epilogue, seed: int) -> None:
    given = operands(epilogue, seed)
    mod = loops(epilogue, core, given[1])
    np.testing.assert_array_equal(result(mod, core, epilogue, given), epilogue.expected(*given))
    vectors, rest = divmod(epilogue.columns, CORES[core].vector_bits // 32)
    # The end of a row that fills no vector stands between it and the next one.
    in_a_row = vectors if rest else epilogue.rows * vectors
    assert bool(joined(mod)) == (in_a_row >= 2)


@pytest.mark.parametrize("core", RUN)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 1, 128, 255, -128, 256, -256])
def test_every_sum_near_the_bounds_of_16_bits(core: str, dtype: str, zero: int) -> None:
    """Saturation to 16 bits is followed by a sum that saturates, too, and by 8 bits."""
    epilogue = Epilogue(4, 64, dtype, zero)
    scale = np.full(64, 0.75, np.float32)
    run = library(loops(epilogue, core, scale), core)["main"]
    term = np.zeros((4, 64), np.uint8)
    for sums in np.arange(-(2**16), 2**16, dtype=np.int32).reshape(-1, 4, 64):
        y = tvm.runtime.tensor(np.zeros((4, 64), dtype))
        run(*map(tvm.runtime.tensor, (sums, scale, term)), y)
        np.testing.assert_array_equal(y.numpy(), epilogue.expected(sums, scale, term))


UNPROVEN = {
    "no constant": None,
    "one scale of 1": np.array([0.5, 1.0], np.float32),
    "a negative one": np.array([0.5, -1.5], np.float32),
    "no number": np.array([0.5, np.nan], np.float32),
    "infinite": np.array([0.5, np.inf], np.float32),
    "below 1, but not by a zero point": np.array([0.5, 1 - 2.0**-20], np.float32),
}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("scale", UNPROVEN.values(), ids=UNPROVEN)
def test_sums_that_may_leave_32_bits_stay(core: str, scale: np.ndarray | None) -> None:
    epilogue = Epilogue(4, 32, zero=3)
    assert joined(loops(epilogue, core, np.full(32, 0.5, np.float32)))
    mod = loops(epilogue, core, None if scale is None else np.resize(scale, 32))
    assert not joined(mod) and "lrint" not in str(mod)


@pytest.mark.parametrize("core", RUN)
@examples(15)
@given(EPILOGUES.filter(lambda e: not e.adds), st.integers(0, 2**32))
def test_large_scales_are_right(core: str, epilogue: Epilogue, seed: int) -> None:
    given = operands(epilogue, seed, most=1000.0)
    given[1][0] = 3.0
    mod = loops(epilogue, core, given[1])
    assert not joined(mod)
    np.testing.assert_array_equal(result(mod, core, epilogue, given), epilogue.expected(*given))


def test_a_zero_point_beyond_bytes_stays() -> None:
    assert not joined(loops(Epilogue(4, 32, zero=257), "x86-64-v3", np.full(32, 0.5, np.float32)))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("columns", [1, 2, 4])
def test_the_assembly_has_packs_and_no_bounds(
    core: str, dtype: str, zero: int, columns: int
) -> None:
    """Of a block of four rows: three packs for four vectors."""
    lanes = CORES[core].vector_bits // 32
    scale = np.full(columns * lanes, 0.5, np.float32)
    mod = loops(Epilogue(4, columns * lanes, dtype, zero), core, scale)
    assembly = library(mod, core).mod.inspect_source("asm")
    counts = {name: assembly.count(f"\t{name}\t") for name in ("vpackssdw", "vpaddsw")}
    last = assembly.count("\tvpackuswb\t" if dtype == "uint8" else "\tvpacksswb\t")
    assert (counts["vpackssdw"], last) == (2 * columns, columns)
    assert counts["vpaddsw"] == (2 * columns if zero else 0)
    assert assembly.count("\tvcvtps2dq\t") == 4 * columns
    for gone in ("vmaxps", "vminps", "vpmaxsd", "vpminsd", "vpmovdb", "vrndscaleps", "vroundps"):
        assert gone not in assembly, gone


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6, 8])
def test_the_model_counts_what_the_assembly_has(core: str, columns: int) -> None:
    lanes = CORES[core].vector_bits // 32
    scale = np.full(columns * lanes, 0.5, np.float32)
    assembly = library(loops(Epilogue(4, columns * lanes, zero=3), core, scale), core).mod
    names = re.findall(r"^\t(v\w+)\t", assembly.inspect_source("asm"), re.MULTILINE)
    of_sums = [n for n in names if re.match(r"vcvt(dq2ps|ps2dq)|vmulps|vpack|vpaddsw", n)]
    assert len(of_sums) == 4 * columns * INSTRUCTIONS
    # Rows follow one another here: parts of them join those of the next one.
    moves = [n for n in names if re.match(r"vpermd|vperm2i128|vextract", n)]
    assert len(moves) == 4 * pieces(columns) if columns % 4 == 0 else moves


@pytest.mark.parametrize("core", RUN)
@pytest.mark.parametrize("place", ["at_start", "at_end"])
@pytest.mark.parametrize("size", ["4, 32", "3, 64", "5, 40", "2, 16", "7, 48"])
def test_stays_inside(core: str, place: str, size: str) -> None:
    """In a process of its own: the failure is a segmentation fault."""
    command = [sys.executable, __file__, core, place, size]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-2000:]}"


def _on_guarded_arrays(core: str, place: str, size: str) -> None:
    epilogue = Epilogue(*map(int, size.split(",")), zero=3, adds=True)
    given = operands(epilogue, 5)
    function = library(loops(epilogue, core, given[1]), core)["main"]
    arrays = GuardedArrays()
    put = getattr(arrays, place)
    kept = [put(array.shape, array.dtype) for array in given]
    for array, value in zip(kept, given, strict=True):
        array[...] = value
    out = put((epilogue.rows, epilogue.columns), np.dtype("uint8"))
    function(*map(tvm.runtime.from_dlpack, (*kept, out)))
    arrays.check()
    np.testing.assert_array_equal(out, epilogue.expected(*given))


if __name__ == "__main__":
    _on_guarded_arrays(*sys.argv[1:])
