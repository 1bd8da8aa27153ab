"""Dataflows that are worth an estimate: what the paper's observations leave of them.

Its algorithm 8: anchored at outputs, the weights take all registers that are left, and inputs what
the weights leave. Observations 4 and 5: under the other anchors outputs come before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_dataflow.anchors import period
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.cost_models.conv2d_dataflow.room import (
    MOST_STEPS,
    is_short,
    most_inputs,
    most_outputs,
    most_weights,
    registers_left,
)
from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.cost_models.moving import share_bytes
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import divisors
from tvm_blislike.model.workload import Conv2dWorkload

# Observation 1: at weights a dataflow gains least. It is in the space only.
ANCHORS = (OUTPUT, INPUT)
# Vectors of a variable: the paper's one to three.
MOST_VECTORS = 3


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for what passes can compute, else the reason why not."""
    w = workload
    if lacking := missing_types(w.types, core):
        return lacking
    if w.types.product != ("float32",) * 3 and not w.types.is_integer_dot:
        return f"a slab of sums in memory is made of float32 or int32, not of {w.types.acc}"
    if w.types.is_masked:
        return "its panels of weights have no closing rows"
    if w.groups > 1:
        return f"{w.groups} groups of channels: a pass reads those of one"
    if w.kh * w.kw > MOST_STEPS // 2:
        return f"kernel {w.kh}x{w.kw} too large to unroll"
    if not kernels(w, core):
        return f"{w.ci} input channels are not whole groups of those that multiply-adds take"
    return ""


def kernels(workload: Conv2dWorkload, core: Core) -> list[Microkernel]:
    """Return the micro-kernels of one row: their multiply-adds on variables of their width."""
    w, lanes = workload, core.lanes(workload.types.acc)
    wide = [k for k in kernels_for(core, w.types) if k.mr == 1 and w.ci % k.ks == 0]
    fitting = [k for k in wide if k.vectors <= MOST_VECTORS]
    if Layout.preferred(w.co, 1, lanes).block:
        return [k for k in fitting if w.co % k.nr == 0]
    return [k for k in fitting if k.nr - lanes < w.co]


def layouts(workload: Conv2dWorkload, kernel: Microkernel) -> list[tuple[str, str]]:
    """Return the pairs of layouts, the usual one first; groups of channels lie in NHWC."""
    if kernel.ks > 1:
        return [("NHWC", "NHWC")]
    out = Layout.preferred(workload.co, 1, kernel.lanes)
    usual = (Layout.preferred(workload.ci, 1, kernel.lanes), out)
    return [usual, ("NCHW", out)]


def channels(workload: Conv2dWorkload, kernel: Microkernel, data_layout: str) -> list[int]:
    """Return the groups of input channels of a pass that a row can be written out for."""
    block = Layout(data_layout).block or workload.ci
    taps = workload.kh * workload.kw
    return [c for c in divisors(block // kernel.ks) if c == 1 or c * taps <= MOST_STEPS // 8]


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[DataflowConfig]:
    """Yield the configurations worth estimating."""
    for kernel in kernels(workload, core):
        data_layout, out_layout = layouts(workload, kernel)[0]
        start = DataflowConfig(
            mr=1,
            nr=kernel.nr,
            ks=kernel.ks,
            data_layout=data_layout,
            out_layout=out_layout,
            tile_w=workload.ow,
        )
        start = start.with_fields(channels=_most_channels(workload, kernel, start, core))
        for tile_h, order in _slabs(workload, start, core, threads):
            sized = start.with_fields(tile_h=tile_h, loop_order=order)
            yield from (allocated(workload, sized, core, anchor) for anchor in ANCHORS)


def _most_channels(
    workload: Conv2dWorkload, kernel: Microkernel, start: DataflowConfig, core: Core
) -> int:
    """Return the most groups of channels whose weights all stay in registers; else one."""
    room = registers_left(workload, start, core) // kernel.vectors
    able = channels(workload, kernel, start.data_layout)
    return max((c for c in able if c * workload.kh * workload.kw <= room), default=1)


def _slabs(
    workload: Conv2dWorkload, start: DataflowConfig, core: Core, threads: int
) -> Iterator[tuple[int, str]]:
    """Yield the most rows whose sums take half of L1; by channels where threads are to share."""
    heights = divisors(workload.oh)
    row = workload.ow * start.nr * workload.types.acc_bytes
    fits = [h for h in heights if 2 * h * row <= share_bytes(core, 1, threads)] or heights[:1]
    yield fits[-1], "rows"
    if threads > 1:
        yield fits[-1], "channels"


def allocated(
    workload: Conv2dWorkload, config: DataflowConfig, core: Core, anchor: str
) -> DataflowConfig:
    """Return a configuration with an anchor: free registers go to what comes first there."""
    c = config.with_fields(anchor=anchor)
    order = {OUTPUT: ("weights", "inputs"), INPUT: ("outputs", "weights"), WEIGHT: ("outputs",)}
    most = {"weights": most_weights, "inputs": most_inputs, "outputs": most_outputs}
    for kind in order[anchor]:
        able = range(most[kind](workload, c, core), -1, -1)
        kept = (c.with_fields(**{kind: number}) for number in able)
        c = next((each for each in kept if is_short(workload, each)), c)
    least = period(DataflowGeometry(workload, c).sizes, c)
    return c.with_fields(unroll=least)
