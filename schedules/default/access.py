"""How the loops of a scheduled nest walk through memory: strides, reuse and conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from tvm_blislike.schedules.lowering.rewrite import collect, constant, decided, substitute

# Calls that LLVM turns into dozens of instructions or into a library call.
_EXPENSIVE = frozenset(
    f"{dialect}.{name}"
    for dialect in ("tirx", "prim")
    for name in (
        "exp exp2 exp10 log log2 log10 log1p pow sigmoid tanh erf sin cos tan sinh cosh asin "
        "acos atan asinh acosh atanh atan2"
    ).split()
)
_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_OPERATIONS = (*_BINARY, tirx.Cast, tirx.Select, ir.Call)


def is_expensive(node: Any) -> bool:
    """Tell whether `node` calls a transcendental function."""
    calls = collect(node, ir.Call)
    return any(isinstance(c.op, ir.Op) and c.op.name in _EXPENSIVE for c in calls)


def operations(node: Any) -> int:
    """Count the operations of values below `node`, without those of indices."""
    loads = collect(node, ir.TensorLoad)
    of_indices = sum(len(collect(index, _OPERATIONS)) for x in loads for index in x.indices)
    return len(collect(node, _OPERATIONS)) - of_indices


def simplify(node: Any, analyzer: sym.Analyzer) -> Any:
    """Drop what the ranges known to `analyzer` decide: conditions, integer minima and maxima."""

    def cast(node: tirx.Cast) -> tirx.Expr:
        if not str(node.value.ty).startswith("int"):
            return node
        return tirx.Cast(str(node.ty), analyzer.simplify(node.value))

    changes = [(ir.Call, lambda call: decided(call, analyzer)), (tirx.Cast, cast)]
    return tvm_ffi.structural_map(node, changes)


def flat_index(buffer: tirx.Buffer, indices: list[tirx.Expr]) -> tirx.Expr:
    """Return the element offset of a row-major access."""
    if not indices:
        return tirx.const(0, "int64")
    flat = indices[0]
    for extent, index in zip(buffer.shape[1:], indices[1:], strict=True):
        size = constant(extent)
        # Fused functions have 64-bit shapes around 32-bit indices; a cast would hide the strides.
        flat = flat * (extent if size is None else size) + index
    return flat


@dataclass
class Access:
    """One load or store below a nest.

    Attributes
    ----------
    buffer : tirx.Buffer
        What is accessed.
    is_store : bool
        Store or load.
    strides : list of int or None
        Elements stepped per iteration of each loop; None where the step is not constant.
    """

    buffer: tirx.Buffer
    is_store: bool
    strides: list[int | None]


@dataclass
class NestAccesses:
    """All accesses below the loops `loops` (outermost first)."""

    loops: list[tirx.For]
    accesses: list[Access] = field(default_factory=list)
    branching: set[int] = field(default_factory=set)
    """Positions of loops whose variable decides a condition or enters the arithmetic."""

    def contiguous_pair(self, outer: int, inner: int) -> bool:
        """Tell whether two adjacent loops walk every buffer like one longer loop."""
        extent = constant(self.loops[inner].extent)
        if extent == 1 or constant(self.loops[outer].extent) == 1:
            return True
        if {outer, inner} & self.branching:
            return False
        return all(
            a.strides[outer] is not None
            and a.strides[inner] is not None
            and a.strides[outer] == a.strides[inner] * extent
            for a in self.accesses
        )

    def gathers(self, position: int) -> bool:
        """Tell whether a load steps by anything but 0 or 1 along the loop at `position`."""
        if constant(self.loops[position].extent) == 1:
            return False
        return any(a.strides[position] not in (0, 1) for a in self.accesses)

    def vector_cost(self, position: int, lanes: int) -> float:
        """Memory instructions per vector when the loop at `position` is the vector axis."""
        return sum(1 if a.strides[position] in (0, 1) else lanes for a in self.accesses)


def loop_analyzer(loops: list[tirx.For]) -> sym.Analyzer:
    """Return an analyzer that knows the ranges of `loops`."""
    analyzer = sym.Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return analyzer


def _linear_strides(
    flat: tirx.Expr, loops: list[tirx.For], analyzer: sym.Analyzer
) -> list[int | None]:
    flat = analyzer.simplify(flat)
    variables = [loop.loop_var for loop in loops]
    coefficients = sym.detect_linear_equation(flat, variables)
    if coefficients:
        return [constant(c) for c in coefficients[:-1]]
    return [_single_stride(flat, loop.loop_var) for loop in loops]


def _single_stride(flat: tirx.Expr, variable: tirx.Var) -> int | None:
    """Stride of one variable when others enter in a way that is not linear."""
    coefficients = sym.detect_linear_equation(flat, [variable])
    return constant(coefficients[0]) if coefficients else None


def _outside_loads(value: tirx.Expr) -> list[tirx.Var]:
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(
        value,
        [
            (ir.TensorLoad, lambda _: tvm_ffi.WalkResult.SKIP),
            (tirx.Var, lambda v: found.append(v) or 0),
        ],
        order="pre",
    )
    return found


def realizes(stmt: tirx.Stmt) -> list[s_tir.SBlockRealize]:
    """Return the blocks below `stmt`."""
    return collect(stmt, s_tir.SBlockRealize)


def analyze_nest(
    top: tirx.For, loops: list[tirx.For], blocks: list[s_tir.SBlockRealize]
) -> NestAccesses:
    """Measure all accesses of `blocks` along `loops`.

    Parameters
    ----------
    top : tirx.For
        Outermost loop, whose whole subtree gives the ranges of inner loops.
    loops : list of tirx.For
        Loops of interest, outermost first.
    blocks : list of s_tir.SBlockRealize
        Blocks below `top`.
    """
    analyzer = loop_analyzer(collect(top, tirx.For))
    nest = NestAccesses(loops)
    for realize in blocks:
        names = [v.var for v in realize.block.iter_vars]
        values = dict(zip(names, realize.iter_values, strict=True))
        for store in collect(realize.block.body, tirx.BufferStore):
            _add_store(nest, substitute(store, values), analyzer)
    return nest


def _add_store(nest: NestAccesses, store: tirx.BufferStore, analyzer: sym.Analyzer) -> None:
    flat = flat_index(store.buffer, store.indices)
    strides = _linear_strides(flat, nest.loops, analyzer)
    nest.accesses.append(Access(store.buffer, True, strides))
    for load in collect(store.value, ir.TensorLoad):
        flat = flat_index(load.source, load.indices)
        strides = _linear_strides(flat, nest.loops, analyzer)
        nest.accesses.append(Access(load.source, False, strides))
    used = _outside_loads(simplify(store.value, analyzer))
    for position, loop in enumerate(nest.loops):
        if any(v.same_as(loop.loop_var) for v in used):
            nest.branching.add(position)
