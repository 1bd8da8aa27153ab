"""One-dimensional views of buffers, for loops fused over several of their axes.

A fused loop leaves indices such as `x[v // 784 + 32, v % 784]`. Their offset is plain
`v + 25088`, but once the vector lanes are in, TVM no longer finds that and loads lane by lane.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.schedules.default.access import flat_index, simplify
from tvm_blislike.schedules.lowering.rewrite import collect


class FlatViews:
    """Replaces accesses with divided indices by accesses to flat views of the same memory.

    Parameters
    ----------
    internal : list of tirx.Buffer
        Buffers the function allocates. They become flat themselves; parameters get an alias.
    """

    def __init__(self, internal: list[tirx.Buffer]) -> None:
        self._internal = [(buffer, _flat_like(buffer)) for buffer in internal]
        self._aliases: list[tuple[tirx.Buffer, tirx.Buffer]] = []

    def allocated(self) -> list[tirx.Buffer]:
        """Return the flat buffers that stand for the internal ones."""
        return [flat for _, flat in self._internal]

    def flatten(
        self, store: tirx.BufferStore, ranges: sym.Analyzer, every: bool = False
    ) -> tirx.BufferStore:
        """Return `store` with its accesses flat: `every` one, or only where that helps.

        It helps where an index is divided; internal buffers are always flat.
        """

        def load(node: ir.TensorLoad) -> ir.TensorLoad:
            flat = self._view(node.source, node.indices, every)
            return node if flat is None else tirx.BufferLoad(flat, _offset(node, ranges))

        value = simplify(store.value, ranges)
        value = tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post")
        flat = self._view(store.buffer, store.indices, every)
        if flat is None:
            return tirx.BufferStore(store.buffer, value, store.indices)
        offset = ranges.simplify(flat_index(store.buffer, store.indices))
        return tirx.BufferStore(flat, value, [offset])

    def declared(self, stmts: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Return `stmts` behind the declarations of the aliases they use."""
        used = [v for stmt in stmts for v in collect(stmt, tirx.Var)]
        declarations = [
            tirx.DeclBuffer(flat, data=buffer.data)
            for buffer, flat in self._aliases
            if any(flat.same_as(v) for v in used)
        ]
        self._aliases = []
        return [*declarations, *stmts]

    def _view(
        self, buffer: tirx.Buffer, indices: list[tirx.Expr], always: bool
    ) -> tirx.Buffer | None:
        for known, flat in [*self._internal, *self._aliases]:
            if known.same_as(buffer):
                return flat
        if not always and not any(collect(i, (tirx.FloorDiv, tirx.FloorMod)) for i in indices):
            return None
        self._aliases.append((buffer, _flat_like(buffer)))
        return self._aliases[-1][1]


def _offset(load: ir.TensorLoad, ranges: sym.Analyzer) -> list[tirx.Expr]:
    return [ranges.simplify(flat_index(load.source, load.indices))]


def _flat_like(buffer: tirx.Buffer) -> tirx.Buffer:
    extent = 1
    for each in buffer.shape:
        extent *= int(each)
    index = str(buffer.shape[0].ty) if len(buffer.shape) else "int64"
    shape = (tirx.const(extent, index),)
    return tirx.decl_buffer(shape, str(buffer.dtype), f"{buffer.name}_flat", layout=None)
