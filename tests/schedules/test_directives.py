"""Directives of loops: what each does, where it is refused, in which order they are done.

`python tests/schedules/test_directives.py` writes the golden examples anew.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from directive_cases import CUT_COPY, GOLDEN, ORDERED, PIXELS
from made_loops import affine, lowered, only_loops
from tvm import s_tir, tirx

from tvm_blislike.model import directives as d
from tvm_blislike.model.directive import Directive, MisplacedDirective, all_directives, check
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering.lower import OF_FUNCTIONS, STEPS
from tvm_blislike.schedules.lowering.rewrite import remade

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "golden"
FUNCTIONS = sorted({f.__name__: f for f in itertools.chain(*GOLDEN.values())}.items())


def done(func: tirx.PrimFunc, steps: tuple = STEPS) -> tirx.PrimFunc:
    """Do what the directives of a function say."""
    body, present = func.body, check(func.body)
    for reads, run in steps:
        if not present.isdisjoint(reads):
            body = run(body, func.params)
    func = func.with_body(body)
    for _reads, run in OF_FUNCTIONS:
        func = run(func)
    return func


def text(func: tirx.PrimFunc) -> str:
    """TVMScript with constants worked out."""
    passes = [s_tir.transform.ConvertSSA(), tirx.transform.StmtSimplify()]
    module = tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))
    lines = module["main"].script(show_meta=False).splitlines()
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"


def example(func: tirx.PrimFunc) -> str:
    return f"# Before\n{text(func)}\n# After\n{text(done(func))}"


@pytest.mark.parametrize("name, func", FUNCTIONS)
def test_golden_example(name: str, func: tirx.PrimFunc) -> None:
    assert example(func) == (FOLDER / f"{name}.txt").read_text()


def test_every_directive_has_a_golden_example() -> None:
    assert set(GOLDEN) == set(all_directives())
    for kind, functions in GOLDEN.items():
        assert all(kind in check(func.body) for func in functions)
    assert {path.stem for path in FOLDER.iterdir()} == {name for name, _ in FUNCTIONS}


# --- refused -----------------------------------------------------

PANEL = {"operand": 1, "axis": -3, "step": 1, "calls": 2, "elements": 8, "streams": 4}
# What stands on the loop over tiles (0) or over the four elements of one (1), and what is said.
REFUSED = [
    (Named("mv"), 1, "no such name; known: mh, mw"),
    (d.Edge({"nr": 3}), 0, "put Named on the loops inside that it cuts: nr"),
    (d.LastBlock({"ir": 3}), 0, "put Named on the loops inside that it cuts: ir"),
    (d.LastEdge({"mw": 3}), 0, "put Named beside it"),
    (d.Border(-1, 0), 0, "give 0 where none is to be split off"),
    (d.SharedBorder(0, -1), 0, "give 0 where none is to be split off"),
    (d.Apart(), 1, "take `parallel`, `unroll` or `vectorize` away"),
    (d.Vector(4), 0, "put it on the innermost loop"),
    (d.Vector(4), 1, "take `parallel`, `unroll` or `vectorize` away"),
    (d.Dot(4, "llvm.x86.avx512.vpdpbusd.128"), 1, "put it on a loop around this one"),
    (d.ByInput(1, 1, 1, 1), 0, "put it on the outermost of loops Named ry, rx, mh, mw"),
    (d.FreshRegisters("neon"), 1, "put it on a loop around this one"),
    (d.InTurn(), 0, "put Named(mw) on loops inside"),
    (d.KLoopCall(1, 4, 24, 4, "panel", 0), 0, "begin its body with the call"),
    (d.TileCall(32, 16, 14, 16), 0, "begin its body with the call"),
    (d.Pieces(4, [0]), 0, "put it on the innermost loop"),
    (d.Pieces(4, [0], 1), 1, "put the loop over the shifted copies inside"),
    (d.Image(0, 7), 1, "give the height and width of the images"),
    (d.InPlace(), 0, "put it on a loop that copies elements and computes nothing"),
    (d.InResult(), 0, "put Named(mw) on loops inside"),
    (d.OpenRows(4, 2, "ir"), 0, "put Named(mw) on loops inside"),
    (d.Turn(4), 1, "put it on a loop around this one"),
    (d.Ring(0, 3, 2), 0, "put Named(ring) on loops inside"),
    (d.NextPanel(**PANEL), 0, "put Named(nr) on loops inside"),
    (d.Ahead(1, 8, 16), 0, "put Named(nr) on loops inside"),
    (d.NextWeights(6, 48, 4), 0, "put Named(call, column, nr) on loops inside"),
    (d.TermsAhead(), 0, "put Named(mw) on loops inside"),
]


@pytest.mark.parametrize("directive, place, said", REFUSED, ids=lambda v: type(v).__name__)
def test_misplaced_directive_is_refused(directive: Directive, place: int, said: str) -> None:
    sch = affine(8)
    tiles, inside = sch.split(only_loops(sch)[0], [None, 4])
    sch.unroll(inside)
    directive.on(sch, (tiles, inside)[place])
    with pytest.raises(MisplacedDirective) as refusal:
        lowered(sch)
    loop = ("i_0", "i_1")[place]
    assert str(refusal.value).startswith(f"{directive} on the loop {loop}: {said}")


@pytest.mark.parametrize("directive", [d.WriteOut(), d.AskOnce(), d.Pieces(4, [0])])
def test_a_loop_becomes_one_thing(directive: Directive) -> None:
    sch = affine(8)
    for each in (d.Vector(4), directive):
        each.on(sch, only_loops(sch)[0])
    with pytest.raises(MisplacedDirective, match="keep one of Vector, "):
        lowered(sch)


def test_every_directive_is_refused_somewhere() -> None:
    refused = {type(directive) for directive, _, _ in REFUSED} | {d.WriteOut, d.AskOnce}
    assert refused == set(all_directives())


def test_directives_are_read_as_written() -> None:
    for directive in (d.Pieces(8, [0, 7], 1), d.Edge({"mw": 3}), Named("k"), d.InPlace()):
        loop = tirx.For(tirx.Var("i", "int32"), 0, 2, tirx.ForKind.SERIAL, tirx.Evaluate(0))
        assert type(directive).of(loop) is None
        assert type(directive).of(remade(loop, annotations=directive.note())) == directive


# --- order -------------------------------------------------------


def exchanged(first: type, second: type) -> tuple:
    """The steps with that of `first` moved right behind that of `second`."""
    steps = list(STEPS)
    moved = next(step for step in steps if first in step[0])
    steps.remove(moved)
    place = next(i for i, step in enumerate(steps) if second in step[0])
    assert place >= STEPS.index(moved), "the step of `second` comes later"
    return (*steps[: place + 1], moved, *steps[place + 1 :])


def with_border(func: tirx.PrimFunc, kind: type[Directive]) -> tirx.PrimFunc:
    """The loops of a directive lose their last iteration to a `Border`."""

    def bordered(loop: tirx.For) -> tirx.For:
        if kind.of(loop) is None:
            return loop
        return remade(loop, annotations={**dict(loop.annotations), **d.Border(0, 1).note()})

    return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.For, bordered)]))


def in_cut_tile(func: tirx.PrimFunc, kind: type[Directive]) -> tirx.PrimFunc:
    """The second of two tiles cuts the loops of a directive short."""

    def named(loop: tirx.For) -> tirx.For:
        if kind.of(loop) is None:
            return loop
        return remade(loop, annotations={**Named("it").note(), **dict(loop.annotations)})

    body = tvm_ffi.structural_map(func.body, [(tirx.For, named)])
    edge = d.Edge({"it": 1, "mw": 1, "rx": 1, "ry": 1}).note()
    kind_of_loop = tirx.ForKind.SERIAL
    return func.with_body(
        tirx.For(tirx.Var("tile", "int32"), 0, 2, kind_of_loop, body, annotations=edge)
    )


BEFORE_EDGES = (
    d.InResult,
    d.NextWeights,
    d.NextPanel,
    d.Ahead,
    d.TermsAhead,
    d.Ring,
    d.FreshRegisters,
)
BEHIND_EDGES = (
    *(d.KLoopCall, d.TileCall, d.Turn, d.ByInput),
    *(d.Dot, d.Pieces, d.WriteOut, d.Vector),
)
RELATIONS = [
    *((kind, d.Edge, with_border(GOLDEN[kind][0], kind)) for kind in BEFORE_EDGES),
    *((d.Edge, kind, in_cut_tile(GOLDEN[kind][0], kind)) for kind in BEHIND_EDGES),
    (d.Image, d.InPlace, PIXELS),
    (d.InPlace, d.Edge, CUT_COPY),
    (d.WriteOut, d.AskOnce, ORDERED),
]


@pytest.mark.parametrize("first, second, func", RELATIONS, ids=lambda v: getattr(v, "__name__", ""))
def test_another_order_makes_something_else(first: type, second: type, func: tirx.PrimFunc) -> None:
    assert text(done(func, exchanged(first, second))) != text(done(func))


def test_each_directive_is_read_by_one_step() -> None:
    read = list(itertools.chain(*(reads for reads, _ in (*STEPS, *OF_FUNCTIONS))))
    assert sorted(kind.__name__ for kind in (*read, Named)) == sorted(
        kind.__name__ for kind in all_directives()
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, func in FUNCTIONS:
        (FOLDER / f"{name}.txt").write_text(example(func))
