"""K loops that are functions of LLVM: whole blocks and cut ones call the one of their size.

A micro-kernel leaves a call without a name (`Panels`), because where blocks are cut
is known only after the edges of tiles have been split off.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_blislike.microkernels import neon_panels
from tvm_blislike.model.directives import Named, Panels
from tvm_blislike.schedules.lowering import imported
from tvm_blislike.schedules.lowering.rewrite import collect, sequence


def with_sources(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Attach the LLVM source of the functions that `func` calls."""
    sources = map(neon_panels.source_of, imported.names_called(func))
    return imported.with_sources(func, filter(None, sources))


def chosen(loop: tirx.For, whole: Panels) -> tirx.Stmt:
    """Give a call the name of the function for its block, and drop the plain loops."""
    call, *plain = loop.body.seq
    size = _extents(sequence(plain))
    rows, columns = size["mh"] * size["mw"], 4 * size["nr"]
    name = neon_panels.symbol(rows, columns, whole.mw, 4 * whole.nr, bool(whole.in_order))
    _, a, b, steps, *c = call.value.args
    # TVM may give a cut block of C shorter rows: each row has its own address.
    panels = (_of_whole_buffer(a), _of_whole_buffer(b))
    return tirx.Evaluate(tirx.call_extern("void", name, *panels, steps, *c[:rows]))


def _of_whole_buffer(address: Any) -> Any:
    """Return an address as one from which all of its buffer may be read.

    Of the address of an element TVM concludes that only this element is read: the panel of a cut
    tile, which is packed for itself, would get shorter rows than the function expects.
    """
    load = address.args[0]
    (offset,) = load.source.offset_of(load.indices)
    return load.source.access_ptr("r", offset=offset)


def _extents(body: tirx.Stmt) -> dict[str, int]:
    """Extents of the loops over the axes of the block; an axis without a loop has one."""
    found = {"mh": 1, "mw": 1, "nr": 1}
    for loop in collect(body, tirx.For):
        named = Named.of(loop)
        if named is not None and named.name in found:
            found[named.name] = int(loop.extent)
    return found
