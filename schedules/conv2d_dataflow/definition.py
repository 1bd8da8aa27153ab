"""Convolution by dataflows: what stays in registers is chosen apart from the order of the work.

    out[n, co, oh, ow] =
        sum_{ci, ry, rx} in[n, ci, oh * stride + ry, ow * stride + rx] * w[co, ci, ry, rx]

After YFlows (CC 2024; `cost_models.conv2d_dataflow.program`). A slab of sums for nr output channels
lies in the first-level cache; each pass over it adds what a few input channels contribute, and is
anchored at its outputs, inputs or weights; other variables stay in registers as the configuration
says. The paper lays vectors along the input channels and adds up their lanes for each output. Here
they lie along the output channels, as in all kernels of this library, and a group of input channels
is broadcast: no dataflow pays for sums of lanes, and what is left between them is what table 1 of
the paper counts, loads and stores.

Verdict (12 layers of the paper on an Intel Xeon, `benchmarks/results/dataflows.txt`): of the basic
dataflows outputs are fastest (weights 1.7, inputs 1.2 to 1.7 times as long), and at weights nothing
gains from other registers, as the paper finds. But registers for outputs make inputs as fast an
anchor as outputs (1.01; with 5x5 windows and variables of one register 0.64 to 0.73): 25 sums take
turns, where a single output is one chain that waits for the latency of FMAs. `conv2d_direct`,
anchored at 28 vectors of outputs that leave registers once, is 1.24 times as fast as the best of
all; so the cost model, which sees that, takes this algorithm for no layer of the zoo. It is here to
be pinned, tuned and compared.

Loops, "rows" order:                              "channels" order (the padded input is made first):

    for n, yo            parallel                     for n, ot            parallel
      copy the slab of the padded input                 for yo
      for ot             tiles of nr channels
        C = 0                                             C = 0
        for ib, ip       blocks of input channels         for ib, ip
          pass over the slab                                pass over the slab
        epilogue; store                                   epilogue; store

Weights are packed at compile time as the passes read them: [tile][block][pass][ry][rx][group][nr].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_dataflow import candidates
from tvm_blislike.cost_models.conv2d_dataflow import estimate as model
from tvm_blislike.cost_models.conv2d_dataflow.config import DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.cost_models.conv2d_dataflow.space import space
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.microkernels.products import place_in_b
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import padded, stage
from tvm_blislike.schedules.conv2d_dataflow.intrin import register_named
from tvm_blislike.schedules.conv2d_dataflow.schedule import schedule


def pack_weights(
    workload: Conv2dWorkload, config: DataflowConfig, weights: np.ndarray
) -> np.ndarray:
    """Pack OIHW weights as passes read them; lanes without a channel hold zeros.

    Parameters
    ----------
    weights : numpy.ndarray
        (co, ci, kh, kw).

    Returns
    -------
    numpy.ndarray
        `DataflowGeometry.packed_shape`: (tiles, blocks of ci, passes, kh, kw, groups, nr * ks).
    """
    geo, c = DataflowGeometry(workload, config), config
    missing = geo.tiles * c.nr - workload.co
    filled = np.pad(weights, ((0, missing), (0, 0), (0, 0), (0, 0)))
    outer = (geo.tiles, c.nr, geo.ci_blocks, geo.passes_of_block, c.channels, c.ks)
    parts = filled.reshape(*outer, workload.kh, workload.kw)
    packed = np.ascontiguousarray(parts.transpose(0, 2, 3, 6, 7, 4, 1, 5))
    return packed.reshape(geo.packed_shape)


def pack_weights_te(
    workload: Conv2dWorkload, config: DataflowConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo, c = DataflowGeometry(workload, config), config

    def value(t: Any, ib: Any, ip: Any, ry: Any, rx: Any, group: Any, lane: Any) -> Any:
        step, j = place_in_b(group, lane, c.ks)
        channel = ib * geo.ci_block + ip * c.channels * c.ks + step
        o = t * c.nr + j
        zero = tirx.const(0, workload.types.b)
        return tirx.if_then_else(o < workload.co, weights[o, channel, ry, rx], zero)

    return te.compute(geo.packed_shape, value, name="packed_weights")


def compute(
    workload: Conv2dWorkload, config: DataflowConfig, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution.

    Parameters
    ----------
    data : te.Tensor
        The image batch in `config.data_layout`.
    packed : te.Tensor
        Weights as `pack_weights` makes them.

    Returns
    -------
    te.Tensor
        The result in `config.out_layout`.
    """
    geo, w, c = DataflowGeometry(workload, config), workload, config
    layout = Layout(c.data_layout)
    shape = layout.shape(w.n, w.ci, *geo.padded_size)
    image = padded(data, layout.height_axis, w.padding, shape)
    (sh, sw), (dh, dw), acc = w.stride, w.dilation, w.types.acc
    extents = {"ib": geo.ci_blocks, "ip": geo.passes_of_block, "ry": w.kh, "rx": w.kw}
    extents |= {"ig": c.channels, "s": c.ks}
    axes = {name: te.reduce_axis((0, extent), name) for name, extent in extents.items()}
    ib, ip, ry, rx, ig, s = axes.values()

    def product(n: Any, t: Any, yo: Any, yi: Any, x: Any, j: Any) -> Any:
        within = (ip * c.channels + ig) * c.ks + s
        at = (yo * c.tile_h + yi) * sh + ry * dh, x * sw + rx * dw
        a = image[_channel(layout, geo, n, ib, *at, within)]
        b = packed[t, ib, ip, ry, rx, ig, j * c.ks + s]
        factors = (a, b) if w.types.is_uniform else (a.astype(acc), b.astype(acc))
        return te.sum(factors[0] * factors[1], axis=list(axes.values()))

    outer = (w.n, geo.tiles, geo.tiles_h, c.tile_h, w.ow, c.nr)
    sums = te.compute(outer, product, name="acc", attrs=stage("acc"))

    def value(n: Any, y: Any, x: Any, o: Any) -> Any:
        at = (n, o // c.nr, y // c.tile_h, y % c.tile_h, x)
        found = sums[(*at, o % c.nr)].astype(w.types.out)
        if geo.tiles > 1 or w.co == c.nr:
            return found
        last = sums[(*at, c.nr - 1)]
        # Always true and simplified away later; naming the last lane keeps `compute_at` from
        # cutting the slab of sums, whose lanes beyond the channels only the passes see.
        return tirx.if_then_else(o < w.co, found, last.astype(w.types.out))

    out = Layout(c.out_layout)

    def result(*at: Any) -> Any:
        n, o, y, x = out.element(*at)
        return value(n, y, x, o)

    shape = out.shape(w.n, w.co, w.oh, w.ow)
    return te.compute(shape, result, name="unpack", attrs=stage("unpack"))


def _channel(
    layout: Layout, geo: DataflowGeometry, n: Any, ib: Any, y: Any, x: Any, within: Any
) -> tuple[Any, ...]:
    """Index of an input channel, `within` those of a block, at a pixel."""
    if layout.block:
        return n, ib, y, x, within
    if geo.planar:
        return n, ib * geo.ci_block + within, y, x
    return n, y, x, within


IMPLEMENTATION = Template(
    name="conv2d_dataflow",
    kind="conv2d",
    config_type=DataflowConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    least_seconds=peak_seconds,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    every=space,
    register_named=register_named,
)
