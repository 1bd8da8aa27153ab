"""A k loop of x86 that is a function of LLVM: the interface by which NEON's loops are called."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kernel_harness import Product, compile_all, primfunc, run

import tvm_blislike.microkernels as microkernels
from tvm_blislike.hardware import ISAS, native_core
from tvm_blislike.microkernels import Microkernel, UpdateShape
from tvm_blislike.microkernels.k_loops import Block, KLoop, block_named, header

LANES = 8
CORE = native_core()
CALLED = []


def source(symbol: str, block: Block) -> str:
    """The loop in LLVM's own language, for vectors of eight floats; it uses every stride."""
    CALLED.append(block)
    return "\n".join([header(symbol, block.rows), *_body(block), "}", ""])


def _body(block: Block) -> Iterator[str]:
    vectors = block.columns // LANES
    tiles = [(i, v) for i in range(block.rows) for v in range(vectors)]
    vector = f"<{LANES} x float>"
    yield "entry:"
    for i, v in tiles:
        yield f"  %p{i}_{v} = getelementptr float, ptr %row{i}, i64 {v * LANES}"
        yield f"  %c{i}_{v} = load {vector}, ptr %p{i}_{v}, align 4"
    yield "  br label %loop"
    yield "loop:"
    yield "  %s = phi i64 [ 0, %entry ], [ %next, %loop ]"
    for i, v in tiles:
        yield f"  %t{i}_{v} = phi {vector} [ %c{i}_{v}, %entry ], [ %u{i}_{v}, %loop ]"
    yield "  %sa = mul i64 %s, %a_step"
    yield "  %sb = mul i64 %s, %b_step"
    yield "  %pb = getelementptr float, ptr %b, i64 %sb"
    for v in range(vectors):
        yield f"  %pb{v} = getelementptr float, ptr %pb, i64 {v * LANES}"
        yield f"  %b{v} = load {vector}, ptr %pb{v}, align 4"
    for i in range(block.rows):
        yield f"  %ra{i} = mul i64 %a_row, {i}"
        yield f"  %oa{i} = add i64 %ra{i}, %sa"
        yield f"  %pa{i} = getelementptr float, ptr %a, i64 %oa{i}"
        yield f"  %a{i} = load float, ptr %pa{i}, align 4"
        yield f"  %e{i} = insertelement {vector} poison, float %a{i}, i64 0"
        same = f"<{LANES} x i32> zeroinitializer"
        yield f"  %x{i} = shufflevector {vector} %e{i}, {vector} poison, {same}"
    for i, v in tiles:
        yield f"  %m{i}_{v} = fmul contract {vector} %x{i}, %b{v}"
        yield f"  %u{i}_{v} = fadd contract {vector} %t{i}_{v}, %m{i}_{v}"
    yield "  %next = add i64 %s, 1"
    yield "  %more = icmp ult i64 %next, %k"
    yield "  br i1 %more, label %loop, label %end"
    yield "end:"
    for i, v in tiles:
        yield f"  store {vector} %u{i}_{v}, ptr %p{i}_{v}, align 4"
    yield "  ret void"


def kernel_with(view: str) -> Microkernel:
    loop = KLoop(f"x86_{view}", lambda _kernel, _in_order: True, functools.cache(source), (view,))
    return Microkernel(ISAS["avx2"], 5, 2 * LANES, loop=loop)


@pytest.mark.skipif(not CORE.isa.memory_operand, reason="runs x86 code")
@pytest.mark.parametrize("view", ["panel", "rows"])
def test_against_numpy(view: str, monkeypatch: pytest.MonkeyPatch):
    kernel = kernel_with(view)
    monkeypatch.setitem(microkernels.LOOPS, kernel.loop.name, kernel.loop)
    CALLED.clear()
    cases = {}
    for m, n, k in ((5, 16, 13), (13, 43, 2), (4, 7, 1), (31, 37, 5)):
        shape = UpdateShape(1, kernel.mr, k, view=view)
        uses = [shape, replace(shape, in_memory=True), replace(shape, sw=1 + (view == "rows"))]
        for number, use in enumerate(uses):
            cases[f"c{m}_{n}_{k}_{number}"] = Product(kernel, use, 1, m, n)
    library = compile_all({n: primfunc(p) for n, p in cases.items()}, CORE.target_config(1))
    assert {n: e for n, p in cases.items() if not (e := run(library[n], p)) <= 1} == {}
    # Whole blocks and cut ones, each by a function of its size.
    assert {(b.rows, b.columns) for b in CALLED} >= {(5, 16), (3, 16), (1, 8)}


def test_symbols_name_their_block():
    loop = kernel_with("panel").loop
    for in_order in (False, True):
        block = Block(1, 3, 8, 5, 16, "panel", in_order)
        assert block_named(loop.symbol(block)) == (loop.name, block, False)
        assert block_named(loop.symbol(block, finish=True)) == (loop.name, block, True)
    assert block_named("blislike_fresh_registers_apart") is None
