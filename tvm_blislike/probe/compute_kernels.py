"""Kernels of the vector units: FMAs alone, with loads beside them, and a clock to count them by."""

from __future__ import annotations

import tvm
from tvm.script.ir_builder import tirx as T

from tvm_blislike.microkernels.products import Product
from tvm_blislike.probe.builders import (
    BLOCK_VECTORS,
    add_product,
    copied,
    kernel,
    put,
    registers,
    value,
)

# Work per iteration of the emitted loops: enough to make the loop's own instructions negligible.
FMA_ROUNDS = 2
CHAIN_PAIRS = 64
# FMAs that use one loaded operand.
USES = 2


def fma(sums: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Independent sums of one constant product, all in registers: FMA_ROUNDS each per repeat."""
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            with registers(args.state, task, "float32") as totals:
                x = copied(totals[0])
                with T.serial(0, args.repeats):
                    for total in totals * FMA_ROUNDS:
                        add_product(total, value(x), value(x))
    return builder.get()


def products(sums: int, lanes: int, product: Product) -> tvm.tirx.PrimFunc:
    """Independent sums of products of words, as `fma`: FMA_ROUNDS each per repeat."""
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            word = T.alloc_buffer((1,), "int32")
            T.buffer_store(word, args.state[task, 0, 0], [0])
            with registers(args.state, task, "float32") as totals:
                row = copied(totals[0])
                bits = T.reinterpret(f"int32x{lanes}", value(row))
                with T.serial(0, args.repeats):
                    for total in totals * FMA_ROUNDS:
                        put(total, product.multiply_add(value(total), word[0], bits, lanes))
    return builder.get()


def fma_beside_loads(sums: int, lanes: int, element: bool) -> tvm.tirx.PrimFunc:
    """The same sums; one factor of each USES of them is loaded, as in a micro-kernel.

    Per step the loads of one block, of its vectors or, as many, of single elements (broadcast).
    """
    loads = sums // USES
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            with registers(args.state, task, "float32") as totals:
                x = copied(totals[0])
                with T.serial(0, args.repeats), T.serial(0, args.steps) as step:
                    for row in range(BLOCK_VECTORS):
                        if element:
                            bits = args.data[args.element(task, step, 0) + row]
                            loaded = T.broadcast(T.reinterpret("float32", bits), lanes)
                        else:
                            bits = args.load(task, step, row)
                            loaded = T.reinterpret(f"float32x{lanes}", bits)
                        first = row % loads * USES
                        for total in totals[first : first + USES]:
                            add_product(total, value(x), loaded)
    return builder.get()


def chain(sums: int, lanes: int) -> tvm.tirx.PrimFunc:
    """One value through adds and xors, a cycle each, that nothing can shorten."""
    with kernel(sums, lanes) as (builder, args):
        with T.parallel(0, args.tasks) as task:
            x, a, b = (T.alloc_buffer((1,), "int32") for _ in range(3))
            for row, scalar in enumerate((x, a, b)):
                T.buffer_store(scalar, args.state[task, row, 0], [0])
            with T.serial(0, args.repeats):
                for _ in range(CHAIN_PAIRS):
                    T.buffer_store(x, T.bitwise_xor(x[0] + a[0], b[0]), [0])
            T.buffer_store(args.state, x[0], [task, 0, 0])
    return builder.get()


def fork(sums: int, lanes: int) -> tvm.tirx.PrimFunc:
    """Hand every thread next to nothing, and wait for all: once per repeat."""
    with kernel(sums, lanes) as (builder, args):
        with T.serial(0, args.repeats), T.parallel(0, args.tasks) as task:
            with registers(args.state, task, "int32", 1) as (total,):
                put(total, value(total) + T.broadcast(T.int32(1), lanes))
    return builder.get()
