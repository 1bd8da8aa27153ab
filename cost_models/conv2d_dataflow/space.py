"""Every configuration of convolution by dataflows: all allocations of the registers."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_dataflow.anchors import period
from tvm_blislike.cost_models.conv2d_dataflow.candidates import channels, kernels, layouts
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.cost_models.conv2d_dataflow.room import (
    MOST_STEPS,
    is_short,
    most_inputs,
    most_outputs,
    most_weights,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.model.space import Axis, Space, Value, divisors, single
from tvm_blislike.model.workload import Conv2dWorkload


def space(workload: Conv2dWorkload, core: Core, _threads: int) -> Space:
    """Return the choices of variable, layouts, slab, anchor, allocation and unrolling."""
    w = workload
    offered = kernels(w, core)
    start = DataflowConfig(mr=1, tile_w=w.ow)

    def placed(c: DataflowConfig) -> list[Value]:
        return list(layouts(w, kernel_of(core, 1, c.nr, w.types, c.ks)))

    def per_pass(c: DataflowConfig) -> list[int]:
        return channels(w, kernel_of(core, 1, c.nr, w.types, c.ks), c.data_layout)

    def unrolls(c: DataflowConfig) -> list[int]:
        least = period(DataflowGeometry(w, c).sizes, c)
        taps = 1 if c.anchor == WEIGHT else w.kh * w.kw * c.channels
        most = max(1, min(MOST_STEPS // (taps * least), -(-w.ow // least)))
        return [least * times for times in (1, 2, 4) if times <= most]

    return Space(
        start,
        (
            Axis("variable", ("nr", "ks"), lambda _: [(k.nr, k.ks) for k in offered]),
            Axis("layouts", ("data_layout", "out_layout"), placed),
            single("channels", per_pass),
            single("loop_order", lambda _: ("channels", "rows")),
            single("tile_h", lambda _: divisors(w.oh)),
            single("anchor", lambda _: (OUTPUT, WEIGHT, INPUT)),
            Axis(
                "registers",
                ("weights", "inputs", "outputs"),
                lambda c: list(_allocations(w, c, core)),
            ),
            single("unroll", unrolls),
        ),
    )


def _allocations(workload: Conv2dWorkload, config: DataflowConfig, core: Core) -> Iterator[Value]:
    """All that the registers have room for."""
    w = workload
    for weights in range(most_weights(w, config, core) + 1):
        with_weights = config.with_fields(weights=weights)
        for inputs in range(most_inputs(w, with_weights, core) + 1):
            c = with_weights.with_fields(inputs=inputs)
            for outputs in range(most_outputs(w, c, core) + 1):
                if is_short(w, c.with_fields(outputs=outputs)):
                    yield weights, inputs, outputs
