"""Prefetches ask for all of the panel that comes next."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from conv_checks import best
from conv_harness import lowered, primfunc
from effort import in_turn
from hypothesis import given
from hypothesis import strategies as st
from tvm import sym, tirx

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import LINE_BYTES, Core
from tvm_blislike.model.types import BYTES
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import schedule
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.conv2d_direct.definition import IMPLEMENTATION
from tvm_blislike.schedules.lowering.prefetch import _AT_ONCE, parts
from tvm_blislike.schedules.lowering.rewrite import collect, substitute
from tvm_blislike.tuning import kernels

CORE, ZEN4 = Core.named("skylake-avx512"), Core.named("zen4")
DIRECT = "conv2d_direct"


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 5))
def test_parts_are_the_whole_panel(lines: int, steps: int, most: int) -> None:
    asked = [parts(lines, step, steps, most) for step in range(steps)]
    assert set(range(lines)) <= set(itertools.chain(*asked))
    # Every part goes on where it stopped, or waits there.
    run = max((b[0] - a[0] for a, b in itertools.pairwise(asked)), default=0) or 1
    for before, after in itertools.pairwise(asked):
        assert after in (before, [line + run for line in before])
        assert len(before) <= most * run
    # Of lines beyond the panel there are fewer than of its own, whatever is asked for at once.
    assert max(itertools.chain(*asked)) < 2 * lines + len(asked[0])


def lines_asked_for(stmt: Any, known: dict[Any, int], buffer: str = "") -> Iterator[int]:
    """Yield the line of the buffer that each prefetch asks for, in order, by running the loops.

    Only those of one buffer, where it is named.
    """
    if isinstance(stmt, tirx.For):
        for value in range(int(stmt.extent)):
            yield from lines_asked_for(stmt.body, {**known, stmt.loop_var: value}, buffer)
    elif isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from lines_asked_for(part, known, buffer)
    elif is_prefetch(stmt):
        load = stmt.value.args[0].args[0]
        if buffer not in load.source.name:
            return
        shape = [int(extent) for extent in load.source.shape]
        at = [number(index, known) for index in load.indices]
        # Indices may leave their extents: what counts is the address.
        place = 0
        for index, extent in zip(at, shape, strict=True):
            place = place * extent + index
        yield place * np.dtype(str(load.source.dtype)).itemsize // LINE_BYTES
    elif hasattr(stmt, "body"):
        yield from lines_asked_for(stmt.body, known, buffer)


def is_prefetch(stmt: Any) -> bool:
    call = stmt.value if isinstance(stmt, tirx.Evaluate) else None
    return "prefetch" in getattr(getattr(call, "op", None), "name", "")


# Indices are mostly of these; `substitute` takes a tenth of a millisecond for each, of 200,000.
_ARITHMETIC = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
}


def number(value: Any, known: dict[Any, int]) -> int:
    if isinstance(value, tirx.IntImm):
        return value.value
    if isinstance(value, tirx.Var):
        return known[value]
    if arithmetic := _ARITHMETIC.get(type(value)):
        return arithmetic(number(value.a, known), number(value.b, known))
    return int(sym.Analyzer().simplify(substitute(value, known)))


CASES = [
    ("conv2d_direct", Conv2dWorkload(1, 32, 7, 7, 96, 3, 3, padding=(1, 1, 1, 1))),
    ("conv2d_direct", Conv2dWorkload(1, 64, 9, 5, 96, 1, 1)),
    ("conv2d_winograd", Conv2dWorkload(1, 32, 12, 12, 96, 3, 3, padding=(1, 1, 1, 1))),
    ("conv2d_winograd_1d", Conv2dWorkload(1, 32, 7, 7, 96, 3, 3, padding=(1, 1, 1, 1))),
    ("conv2d_direct", Conv2dWorkload(1, 64, 28, 28, 128, 3, 3, padding=(1,) * 4, types=BYTES)),
    ("conv2d_direct", Conv2dWorkload(1, 64, 28, 28, 192, 1, 1, types=BYTES)),
]


@pytest.mark.parametrize("name, workload", CASES)
def test_every_panel_but_the_first_is_asked_for(name: str, workload: Conv2dWorkload) -> None:
    core = ZEN4 if workload.types == BYTES else CORE
    offers = [o for o in Strategy(core, 1).offers(workload) if o[0].implementation == name]
    config, _ = min(offers, key=lambda offer: offer[1])
    group = kernels.CandidateGroup(workload, (config,), core, 1)
    with tvm.target.Target(core.target_config(1)):
        made = schedule(tvm.IRModule(kernels.functions(group, 0, config)), Plan(core, 1))
    asked = set(lines_asked_for(made["candidate_0"].body, {}))
    shape = (workload.co, workload.ci, workload.kh, workload.kw)
    weights = np.zeros(shape, workload.types.b)
    lines = get_implementation(name).pack(workload, config, weights).nbytes // LINE_BYTES
    panels = math.ceil(workload.co / config.nr)
    assert panels > 1 and 0 < min(asked) <= lines // panels
    assert set(range(min(asked), lines)) <= asked


# Calls of the last one ask for a line each.
@pytest.mark.parametrize("name, workload", CASES[:-1])
def test_a_core_says_from_how_many_places(name: str, workload: Conv2dWorkload) -> None:
    def first(streams: int) -> list[int]:
        described = ZEN4 if workload.types == BYTES else CORE
        core = dataclasses.replace(described, prefetch_streams=streams)
        offers = [o for o in Strategy(core, 1).offers(workload) if o[0].implementation == name]
        config, _ = min((o for o in offers if o[0].prefetch), key=lambda offer: offer[1])
        group = kernels.CandidateGroup(workload, (config,), core, 1)
        with tvm.target.Target(core.target_config(1)):
            made = schedule(tvm.IRModule(kernels.functions(group, 0, config)), Plan(core, 1))
        return list(lines_asked_for(made["candidate_0"].body, {}))

    one, four = first(1), first(4)
    assert one and four
    apart = [sum(b != a + 1 for a, b in itertools.pairwise(lines)) for lines in (one, four)]
    assert apart[0] < apart[1]


@pytest.mark.parametrize("core, layer", in_turn(("zen4", "zen3"), ((2048, 1), (1024, 3))))
def test_products_of_bytes_lie_between_requests(core: str, layer: tuple[int, int]) -> None:
    described, (channels, kernel) = Core.named(core), layer
    sides = (kernel // 2,) * 4
    workload = Conv2dWorkload(1, channels, 7, 7, 192, kernel, kernel, padding=sides)
    workload = dataclasses.replace(workload, types=quantized_types(described))
    offers = [o for o in Strategy(described, 1).offers(workload) if o[0].implementation == DIRECT]
    config, _ = min((o for o in offers if o[0].prefetch), key=lambda offer: offer[1])
    panel = channels * kernel**2 * config.nr * workload.types.b_bytes // LINE_BYTES
    blocks = config.oh_block * math.ceil(7 / config.tile_w)
    assert panel > 2 * _AT_ONCE * kernel * blocks
    group = kernels.CandidateGroup(workload, (config,), described, 1)
    with tvm.target.Target(described.target_config(1)):
        made = schedule(tvm.IRModule(kernels.functions(group, 0, config)), Plan(described, 1))
    body = made["candidate_0"].body
    runs = list(requests_in_a_row(body))
    assert runs and max(runs) <= _AT_ONCE
    asked = set(lines_asked_for(body, {}))
    weights = np.zeros((192, channels, kernel, kernel), workload.types.b)
    lines = get_implementation(DIRECT).pack(workload, config, weights).nbytes // LINE_BYTES
    assert set(range(lines // math.ceil(192 / config.nr), lines)) <= asked


def requests_in_a_row(body: tirx.Stmt) -> Iterator[int]:
    """Yield how many prefetches stand side by side, of each sequence that has some."""
    for sequence in collect(body, tirx.SeqStmt):
        is_one = [is_prefetch(s) for s in sequence]
        yield from (len(list(run)) for found, run in itertools.groupby(is_one) if found)


@pytest.mark.parametrize("core", ["zen4", "haswell", "cortex-a76"])
@pytest.mark.parametrize(
    "workload",
    [
        Conv2dWorkload(1, 64, 9, 7, 96, 1, 1),
        Conv2dWorkload(2, 32, 14, 14, 80, 3, 3, (2, 2), (1, 1, 1, 1)),
    ],
    ids=str,
)
def test_blocks_ask_for_all_of_a_residual(core: str, workload: Conv2dWorkload) -> None:
    described = Core.named(core)
    workload = dataclasses.replace(workload, types=quantized_types(described))
    config = best(IMPLEMENTATION, workload, described)
    plain, added = (
        lowered(primfunc(workload, config, steps), described)["main"].body
        for steps in (["bias"], ["bias", "residual"])
    )
    size = workload.n * workload.oh * workload.ow * workload.co * 4
    asked = set(lines_asked_for(added, {}, "residual"))
    assert set(range(size // LINE_BYTES)) <= asked
    assert not set(lines_asked_for(plain, {}, "bias"))


@pytest.mark.parametrize(
    "workload",
    [
        Conv2dWorkload(1, 64, 9, 7, 96, 1, 1),
        # Of one pixel nothing tells a residual from a bias.
        Conv2dWorkload(1, 64, 1, 1, 64, 1, 1, types=BYTES),
    ],
    ids=str,
)
def test_others_ask_for_no_residual(workload: Conv2dWorkload) -> None:
    config = best(IMPLEMENTATION, workload, ZEN4)
    module = lowered(primfunc(workload, config, ["residual"]), ZEN4)
    assert not set(lines_asked_for(module["main"].body, {}, "residual"))
