"""Hand-made loops through `lowering`: what is left of them, and what they compute."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from tvm_blislike.model.directives import Edge
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.schedules.lowering.lower import lower

# A register file of 32 vectors of 512 bits.
REGISTERS = 2048
RNG = np.random.default_rng(11)


def affine(size: int) -> s_tir.Schedule:
    """y = 2 x + 1 of `size` elements; one block, one loop."""
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] * 2.0 + 1.0, name="y")
    return s_tir.Schedule(te.create_prim_func([x, y]))


def only_loops(sch: s_tir.Schedule, block: str = "y") -> list:
    return list(sch.get_loops(sch.get_sblock(block)))


def lowered(sch: s_tir.Schedule, registers: int = REGISTERS) -> tvm.IRModule:
    func = sch.mod["main"].with_attr({REGISTER_BYTES: registers, "global_symbol": "main"})
    return lower(tvm.IRModule({"main": func}))


def found(mod: tvm.IRModule, kind: type) -> list:
    """All nodes of a kind in `main`, outer before inner, first before last."""
    nodes: list = []
    body = mod["main"].body
    tvm_ffi.structural_walk(body, [(kind, nodes.append)], order="pre")
    return nodes


def loops(mod: tvm.IRModule) -> list[tuple[str, int, int]]:
    """Name, first value and extent of each loop; a vector of one lane is no loop."""
    every = [(f.loop_var.name, int(f.min), int(f.extent)) for f in found(mod, tirx.For)]
    return [loop for loop in every if loop != ("lane", 0, 1)]


def result(mod: tvm.IRModule, shape: tuple[int, ...], *inputs: np.ndarray) -> np.ndarray:
    """Run `main` on the inputs; what it does not write is NaN."""
    library = tvm.compile(mod, tvm.target.Target({"kind": "llvm", "num-cores": 2}))
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    library["main"](*map(tvm.runtime.tensor, inputs), out)
    return out.numpy()


def computes_affine(mod: tvm.IRModule, size: int) -> bool:
    x = RNG.standard_normal(size, dtype=np.float32)
    return np.array_equal(result(mod, (size,), x), 2 * x + 1)


def tiled(size: int, tile: int) -> s_tir.Schedule:
    sch = affine(size)
    tiles, inside = sch.split(only_loops(sch)[0], [None, tile])
    Named("mw").on(sch, inside)
    if size % tile:
        Edge({"mw": size % tile}).on(sch, tiles)
    return sch
