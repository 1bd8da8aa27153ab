"""Small made-up loops, a function or two for each directive."""

# ruff: noqa: E501

from tvm import tirx
from tvm.script import tirx as T

from tvm_blislike.model.directives import (
    Ahead,
    Apart,
    AskOnce,
    Border,
    ByInput,
    Dot,
    Edge,
    FreshRegisters,
    Image,
    InPlace,
    InResult,
    InTurn,
    KLoopCall,
    LastBlock,
    LastEdge,
    NextPanel,
    NextWeights,
    OpenRows,
    Pieces,
    Ring,
    SharedBorder,
    TermsAhead,
    TileCall,
    Turn,
    Vector,
    WriteOut,
)
from tvm_blislike.model.loop_names import Named

F32 = "float32"
CUT_TILES = {**Named("ir").note(), **LastEdge({"mw": 3}).note()}
EDGE_APART = {**Edge({"mw": 3}).note(), **Apart().note()}
COPY_OF_PIXELS = {**InPlace().note(), **Image(5, 7).note()}
NEST = {**Named("ry").note(), **ByInput(1, 1, 1, 1).note()}


@T.prim_func(s_tir=True)
def vector(x: T.Buffer((11,), F32), y: T.Buffer((11,), F32)):
    for i in T.serial(11, annotations=Vector(4).note()):
        y[i] = x[i] * T.float32(2)


@T.prim_func(s_tir=True)
def edge(x: T.Buffer((11,), F32), y: T.Buffer((11,), F32)):
    for tile in T.serial(3, annotations=Edge({"mw": 3}).note()):
        for i in T.serial(4, annotations=Named("mw").note()):
            y[tile * 4 + i] = x[tile * 4 + i] * T.float32(2)


@T.prim_func(s_tir=True)
def last_edge(x: T.Buffer((27,), F32), y: T.Buffer((27,), F32)):
    for block in T.serial(2, annotations=LastBlock({"ir": 3}).note()):
        for tile in T.serial(4, annotations=CUT_TILES):
            for i in T.serial(4, annotations=Named("mw").note()):
                y[block * 16 + tile * 4 + i] = x[block * 16 + tile * 4 + i] * T.float32(2)


@T.prim_func(s_tir=True)
def open_rows(x: T.Buffer((6, 5), F32), y: T.Buffer((6, 5), F32)):
    T.func_attr({"blislike.row_axes": [0, 0]})
    for tile in T.serial(2, annotations=OpenRows(3, 2, "ir").note()):
        for i in T.unroll(3, annotations=Named("mw").note()):
            for j in range(5):
                y[tile * 3 + i, j] = x[tile * 3 + i, j] * T.float32(2)


@T.prim_func(s_tir=True)
def open_pairs(x: T.Buffer((24, 5), F32), y: T.Buffer((24, 5), F32)):
    T.func_attr({"blislike.row_axes": [0, 0]})
    for block in T.parallel(2, annotations=OpenRows(3, 2, "ic", each=2, parts=2).note()):
        for tile in T.serial(2, annotations=OpenRows(3, 2, "ir", each=2).note()):
            for i in T.serial(3, annotations=Named("mw").note()):
                for j in range(5):
                    y[block * 12 + tile * 6 + i * 2, j] = x[block * 12 + tile * 6 + i * 2, j]
                for j in range(5):
                    y[block * 12 + tile * 6 + i * 2 + 1, j] = x[
                        block * 12 + tile * 6 + i * 2 + 1, j
                    ]


@T.prim_func(s_tir=True)
def border(x: T.Buffer((8,), F32), y: T.Buffer((11,), F32)):
    for i in T.serial(11, annotations=Border(1, 2).note()):
        y[i] = T.if_then_else(i >= 1 and i < 9, x[i - 1], T.float32(0))


@T.prim_func(s_tir=True)
def shared_border(x: T.Buffer((8,), F32), y: T.Buffer((11,), F32)):
    for i in T.serial(11, annotations=SharedBorder(1, 2).note()):
        y[i] = T.if_then_else(i >= 1 and i < 9, x[i - 1], T.float32(0))


@T.prim_func(s_tir=True)
def apart(x: T.Buffer((11,), F32), y: T.Buffer((11,), F32)):
    for tile in T.serial(3, annotations=EDGE_APART):
        for i in T.serial(4, annotations=Named("mw").note()):
            y[tile * 4 + i] = x[tile * 4 + i] * T.float32(2)


@T.prim_func(s_tir=True)
def write_out(x: T.Buffer((8,), F32), y: T.Buffer((3,), F32)):
    for i in T.serial(3, annotations=WriteOut().note()):
        y[i] = T.Select(i == 0, x[0] + x[1], T.Select(i == 1, x[0] - x[1], x[2]))


@T.prim_func(s_tir=True)
def ask_once(x: T.Buffer((8, 8), F32), y: T.Buffer((8, 8), F32)):
    for i in T.serial(8, annotations=AskOnce().note()):
        for j in range(8):
            y[i, j] = T.if_then_else(i < 7, x[i, j] + x[i + 1, j], T.float32(0))


@T.prim_func(s_tir=True)
def by_input(x: T.Buffer((1, 3), F32), w: T.Buffer((1, 2), F32), y: T.Buffer((1, 2), F32)):
    for ry in T.serial(1, annotations=NEST):
        for rx in T.serial(2, annotations=Named("rx").note()):
            for ih in T.serial(1, annotations=Named("mh").note()):
                for iw in T.serial(2, annotations=Named("mw").note()):
                    y[ih, iw] = y[ih, iw] + x[ih + ry, iw + rx] * w[ry, rx]


@T.prim_func(s_tir=True)
def by_input_at_borders(
    x: T.Buffer((5, 3, 2), F32), w: T.Buffer((3, 2, 2), F32), y: T.Buffer((6, 2, 2), F32)
):
    for row in T.serial(6, annotations=SharedBorder(1, 2).note()):
        for ry in T.serial(3, annotations=NEST):
            for rx in T.serial(2, annotations=Named("rx").note()):
                for ih in T.serial(1, annotations=Named("mh").note()):
                    for iw in T.serial(2, annotations=Named("mw").note()):
                        for lane in T.serial(2, annotations=Vector(2).note()):
                            y[row + ih, iw, lane] = y[row + ih, iw, lane] + T.if_then_else(
                                row + ih + ry >= 1 and row + ih + ry < 6,
                                x[row + ih + ry - 1, iw + rx, lane] * w[ry, rx, lane],
                                T.float32(0),
                            )


@T.prim_func(s_tir=True)
def dot(x: T.Buffer((3, 9), "uint8"), w: T.Buffer((36,), "int8"), y: T.Buffer((9,), "int32")):
    for i in T.serial(9, annotations=Dot(4, "llvm.x86.avx512.vpdpbusd.128").note()):
        for step in range(4):
            y[i] = y[i] + T.if_then_else(
                step > 0,
                T.Cast("int32", x[T.min(step, 2), i]) * T.Cast("int32", w[i * 4 + step]),
                0,
            )


@T.prim_func(s_tir=True)
def fresh_registers(x: T.Buffer((4, 16), F32), y: T.Buffer((4, 16), F32)):
    for i in T.serial(4, annotations=FreshRegisters("avx512").note()):
        for j in T.vectorized(16):
            y[i, j] = x[i, j] * T.float32(2)


@T.prim_func(s_tir=True)
def in_turn(a: T.Buffer((4, 2), F32), b: T.Buffer((4, 16), F32), c: T.Buffer((2, 16), F32)):
    for k in T.unroll(4, annotations=InTurn().note()):
        for mw in T.unroll(2, annotations=Named("mw").note()):
            for nr in T.vectorized(16):
                c[mw, nr] = c[mw, nr] + a[k, mw] * b[k, nr]


@T.prim_func(s_tir=True)
def k_loop_call(a: T.Buffer((64, 4), F32), b: T.Buffer((64, 24), F32), c: T.Buffer((4, 24), F32)):
    for _call in T.serial(1, annotations=KLoopCall(1, 4, 24, 4, "panel", 0).note()):
        T.evaluate(
            T.call_extern(
                "void", "neon_f32", T.address_of(a[0, 0]), T.int64(0), T.int64(1), T.int64(4),
                T.address_of(b[0, 0]), T.int64(24), T.int64(64),
                T.address_of(c[0, 0]), T.address_of(c[1, 0]), T.address_of(c[2, 0]), T.address_of(c[3, 0]),
            )
        )  # fmt: skip
        for k in range(64):
            for i in T.serial(3, annotations=Named("mw").note()):
                for j in T.serial(6, annotations=Named("nr").note()):
                    c[i, T.ramp(j * 4, 1, 4)] = (
                        c[i, T.ramp(j * 4, 1, 4)] + a[k, i] * b[k, T.ramp(j * 4, 1, 4)]
                    )


@T.prim_func(s_tir=True)
def finished_k_loop_call(
    a: T.Buffer((2, 4, 64), "int8"), b: T.Buffer((2, 8, 32), "int8"), c: T.Buffer((4, 4), "int32")
):
    for i in T.serial(3, annotations=Named("mw").note()):
        c[i, T.ramp(0, 1, 4)] = T.Broadcast(0, 4)
    for ry in range(2):
        for _call in T.serial(1, annotations=KLoopCall(1, 4, 4, 4, "rows", 0).note()):
            T.evaluate(
                T.call_extern(
                    "void", "neon_smmla", T.address_of(a[ry, 0, 0]), T.int64(0), T.int64(64), T.int64(8),
                    T.address_of(b[ry, 0, 0]), T.int64(32), T.int64(8),
                    T.address_of(c[0, 0]), T.address_of(c[1, 0]), T.address_of(c[2, 0]), T.address_of(c[3, 0]),
                )
            )  # fmt: skip
            for k in range(64):
                for i in T.serial(3, annotations=Named("mw").note()):
                    for j in range(4):
                        c[i, j] = c[i, j] + T.Cast("int32", a[ry, i, k]) * T.Cast(
                            "int32", b[ry, k // 8, j * 8 + k % 8]
                        )


@T.prim_func(s_tir=True)
def tile_call(
    a: T.Buffer((2, 28, 64), "uint8"),
    b: T.Buffer((2, 16, 128), "int8"),
    c: T.Buffer((28, 32), "int32"),
):
    for i in T.serial(28, annotations=Named("mw").note()):
        for j in T.serial(2, annotations=Named("nr").note()):
            c[i, T.ramp(j * 16, 1, 16)] = T.Broadcast(0, 16)
    for ry in range(2):
        for _call in T.serial(1, annotations=TileCall(32, 16, 14, 16).note()):
            T.evaluate(
                T.call_extern(
                    "void", "u8s8", T.address_of(a[ry, 0, 0]), T.int64(0), T.int64(64),
                    T.address_of(b[ry, 0, 0]), T.address_of(c[0, 0]),
                )
            )  # fmt: skip
            for k in range(16):
                for i in T.serial(28, annotations=Named("mw").note()):
                    for j in T.serial(2, annotations=Named("nr").note()):
                        c[i, T.ramp(j * 16, 1, 16)] = c[i, T.ramp(j * 16, 1, 16)] + T.Cast(
                            "int32", a[ry, i, k]
                        ) * T.Cast("int32x16", b[ry, k, T.ramp(j * 16, 1, 16)])


@T.prim_func(s_tir=True)
def tile_call_on_one_axis(
    a: T.Buffer((2, 28, 64), "uint8"),
    b: T.Buffer((2, 16, 128), "int8"),
    c: T.Buffer((896,), "int32"),
):
    for i in T.serial(28, annotations=Named("mw").note()):
        for j in T.serial(2, annotations=Named("nr").note()):
            c[T.ramp(i * 32 + j * 16, 1, 16)] = T.Broadcast(0, 16)
    for ry in range(2):
        for _call in T.serial(1, annotations=TileCall(32, 16, 14, 16).note()):
            T.evaluate(
                T.call_extern(
                    "void", "u8s8", T.address_of(a[ry, 0, 0]), T.int64(0), T.int64(64),
                    T.address_of(b[ry, 0, 0]), T.address_of(c[0]),
                )
            )  # fmt: skip
            for k in range(16):
                for i in T.serial(28, annotations=Named("mw").note()):
                    for j in T.serial(2, annotations=Named("nr").note()):
                        c[T.ramp(i * 32 + j * 16, 1, 16)] = c[
                            T.ramp(i * 32 + j * 16, 1, 16)
                        ] + T.Cast("int32", a[ry, i, k]) * T.Cast(
                            "int32x16", b[ry, k, T.ramp(j * 16, 1, 16)]
                        )


@T.prim_func(s_tir=True)
def pieces(x: T.Buffer((4, 7), F32), y: T.Buffer((14,), F32)):
    for i in T.serial(14, annotations=Pieces(4, [7]).note()):
        y[i] = x[i // 7, i % 7]


@T.prim_func(s_tir=True)
def shifted_pieces(x: T.Buffer((16,), F32), y: T.Buffer((2, 8), F32)):
    for i in T.serial(8, annotations=Pieces(8, [0], shifts=1).note()):
        for tap in range(2):
            y[tap, i] = x[i + tap]


@T.prim_func(s_tir=True)
def image(x: T.Buffer((3, 5, 7), F32), y: T.Buffer((3, 35), F32)):
    for c in range(3):
        for pixel in T.serial(35, annotations=Image(5, 7).note()):
            y[c, pixel] = x[c, pixel // 7, pixel % 7]


@T.prim_func(s_tir=True)
def in_place(x: T.Buffer((8, 20), F32), y: T.Buffer((8,), F32)):
    panel = T.alloc_buffer((8,), F32)
    for i in T.serial(8, annotations=InPlace().note()):
        panel[i] = x[i, 3]
    for i in range(8):
        y[i] = panel[i] * T.float32(2)


@T.prim_func(s_tir=True)
def in_result(x: T.Buffer((3, 8, 4), F32), y: T.Buffer((8, 4), F32)):
    for block in range(2):
        sums = T.alloc_buffer((4, 4), F32)
        for pc in T.serial(2, annotations=InResult().note()):
            for i in T.serial(4, annotations=Named("mw").note()):
                for j in range(4):
                    if pc == 0:
                        sums[i, j] = T.float32(0)
                    sums[i, j] = sums[i, j] + x[pc, block * 4 + i, j]
        for i in range(4):
            for j in range(4):
                y[block * 4 + i, j] = T.max(sums[i, j] + x[2, block * 4 + i, j], T.float32(0))


@T.prim_func(s_tir=True)
def in_wider_sums(x: T.Buffer((3, 8), F32), y: T.Buffer((8,), "float16")):
    sums = T.alloc_buffer((8,), F32)
    for pc in T.serial(2, annotations=InResult().note()):
        for i in T.serial(8, annotations=Named("mw").note()):
            if pc == 0:
                sums[i] = T.float32(0)
            sums[i] = sums[i] + x[pc, i]
    for i in range(8):
        y[i] = T.Cast("float16", sums[i] + x[2, i])


@T.prim_func(s_tir=True)
def turn(acc: T.Buffer((4, 4), F32), y: T.Buffer((4, 4), F32)):
    for column in T.serial(4, annotations=Turn(4).note()):
        for row in range(4):
            y[column, row] = T.max(acc[row, column], T.float32(0))


@T.prim_func(s_tir=True)
def ring(x: T.Buffer((7, 8), F32), y: T.Buffer((6, 8), F32)):
    for block in T.serial(3, annotations=Ring(axis=0, rows=3, step=2).note()):
        rows = T.alloc_buffer((3, 8), F32)
        for row in T.serial(3, annotations=Named("ring").note()):
            for j in range(8):
                rows[row, j] = x[block * 2 + row, j] * T.float32(2)
        for i in range(2):
            for j in range(8):
                y[block * 2 + i, j] = rows[i, j] + rows[i + 1, j]


@T.prim_func(s_tir=True)
def next_panel(
    a: T.Buffer((96, 4), F32), b: T.Buffer((3, 64, 16), F32), c: T.Buffer((3, 96, 16), F32)
):
    for tile in range(3):
        for call in T.serial(
            24, annotations=NextPanel(1, -3, 1, calls=24, elements=1024, streams=4).note()
        ):
            for k in T.serial(32, annotations=Named("k").note()):
                for ki in T.serial(2, annotations=Named("ki").note()):
                    for _j in T.serial(1, annotations=Named("nr").note()):
                        c[tile, call, T.ramp(0, 1, 16)] = (
                            c[tile, call, T.ramp(0, 1, 16)]
                            + T.Broadcast(a[call, 0], 16) * b[tile, k * 2 + ki, T.ramp(0, 1, 16)]
                        )


@T.prim_func(s_tir=True)
def ahead(a: T.Buffer((24, 64), F32), b: T.Buffer((64, 16), F32), c: T.Buffer((24, 16), F32)):
    for call in T.serial(24, annotations=Ahead(1, steps=8, elements=16).note()):
        for k in T.serial(32, annotations=Named("k").note()):
            for ki in T.serial(2, annotations=Named("ki").note()):
                for _j in T.serial(1, annotations=Named("nr").note()):
                    c[call, T.ramp(0, 1, 16)] = (
                        c[call, T.ramp(0, 1, 16)]
                        + T.Broadcast(a[call, k * 2 + ki], 16) * b[k * 2 + ki, T.ramp(0, 1, 16)]
                    )


@T.prim_func(s_tir=True)
def next_weights(
    a: T.Buffer((8, 6), F32), b: T.Buffer((1, 2, 1, 1, 16, 16), F32), c: T.Buffer((8, 6, 16), F32)
):
    for tile in range(2):
        for row in T.serial(8, annotations=NextWeights(columns=6, blocks=48, streams=4).note()):
            for column in T.serial(6, annotations=Named("column").note()):
                for call in T.serial(1, annotations=Named("call").note()):
                    for k in T.serial(16, annotations=Named("k").note()):
                        for _j in T.serial(1, annotations=Named("nr").note()):
                            c[row, column, T.ramp(0, 1, 16)] = (
                                c[row, column, T.ramp(0, 1, 16)]
                                + T.Broadcast(a[row, column], 16)
                                * b[0, tile, call, 0, k, T.ramp(0, 1, 16)]
                            )


@T.prim_func(s_tir=True)
def many_next_weights(
    a: T.Buffer((6, 64), "uint8"),
    b: T.Buffer((1, 2, 1, 1, 16, 512), "int8"),
    c: T.Buffer((6, 128), "int32"),
):
    for tile in range(2):
        for row in T.serial(2, annotations=NextWeights(3, 6, streams=1, in_loops=1).note()):
            for column in T.serial(3, annotations=Named("column").note()):
                for call in T.serial(1, annotations=Named("call").note()):
                    for k in T.serial(16, annotations=Named("k").note()):
                        for j in T.serial(128, annotations=Named("nr").note()):
                            c[row * 3 + column, j] = c[row * 3 + column, j] + T.Cast(
                                "int32", a[row * 3 + column, k * 4]
                            ) * T.Cast("int32", b[0, tile, call, 0, k, j * 4])


@T.prim_func(s_tir=True)
def terms_ahead(
    a: T.Buffer((8, 16), F32),
    b: T.Buffer((16, 80), F32),
    bias: T.Buffer((80,), F32),
    other: T.Buffer((8, 80), F32),
    y: T.Buffer((8, 80), F32),
):
    for block in T.serial(2, annotations=TermsAhead().note()):
        sums = T.alloc_buffer((4, 80), F32)
        for k in range(16):
            for i in T.serial(4, annotations=Named("mw").note()):
                for j in range(80):
                    sums[i, j] = sums[i, j] + a[block * 4 + i, k] * b[k, j]
        for i in T.serial(4, annotations=Named("mw").note()):
            for j in range(80):
                y[block * 4 + i, j] = sums[i, j] + bias[j] + other[block * 4 + i, j]


# What each directive does, alone or with the ones that it needs.
GOLDEN: dict[type, tuple[tirx.PrimFunc, ...]] = {
    Named: (edge,),
    Edge: (edge,),
    LastBlock: (last_edge,),
    LastEdge: (last_edge,),
    OpenRows: (open_rows, open_pairs),
    Border: (border,),
    SharedBorder: (shared_border,),
    Apart: (apart,),
    Vector: (vector,),
    WriteOut: (write_out,),
    AskOnce: (ask_once,),
    ByInput: (by_input, by_input_at_borders),
    Dot: (dot,),
    FreshRegisters: (fresh_registers,),
    InTurn: (in_turn,),
    KLoopCall: (k_loop_call, finished_k_loop_call),
    TileCall: (tile_call, tile_call_on_one_axis),
    Pieces: (pieces, shifted_pieces),
    Image: (image,),
    InPlace: (in_place,),
    InResult: (in_result, in_wider_sums),
    Turn: (turn,),
    Ring: (ring,),
    NextPanel: (next_panel,),
    Ahead: (ahead,),
    NextWeights: (next_weights, many_next_weights),
    TermsAhead: (terms_ahead,),
}


# --- functions of which another order of the steps makes something else ----------------------


@T.prim_func(s_tir=True)
def PIXELS(x: T.Buffer((5, 7), F32), y: T.Buffer((35,), F32)):
    panel = T.alloc_buffer((35,), F32)
    for i in T.serial(35, annotations=COPY_OF_PIXELS):
        panel[i] = x[i // 7, i % 7]
    y[T.ramp(3, 1, 8)] = panel[T.ramp(3, 1, 8)]


@T.prim_func(s_tir=True)
def CUT_COPY(x: T.Buffer((8, 4), F32), y: T.Buffer((8, 4), F32)):
    for row in T.serial(8, annotations=Border(0, 1).note()):
        panel = T.alloc_buffer((4,), F32)
        for i in T.serial(4, annotations=InPlace().note()):
            panel[i] = x[row, i]
        for i in range(4):
            y[row, i] = panel[i] * T.float32(2)


@T.prim_func(s_tir=True)
def ORDERED(x: T.Buffer((9, 2), F32), y: T.Buffer((8, 2), F32)):
    for i in T.serial(8, annotations=AskOnce().note()):
        for j in T.serial(2, annotations=WriteOut().note()):
            y[i, j] = T.if_then_else(i + j < 8, x[i + j, 0] + x[i, j], T.float32(0))
