"""How many variables of each kind fit into the registers, and into code of a reasonable size.

Three variables take part in a multiply-add whatever is stationary (the basic dataflows of the
paper, section 2.5); auxiliary stationarities share the other registers.
"""

from __future__ import annotations

from tvm_blislike.cost_models.conv2d_dataflow.anchors import period, window_outputs
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload

# Multiply-adds of one iteration along a row that are written out.
MOST_STEPS = 256


def vectors_of(workload: Conv2dWorkload, config: DataflowConfig, core: Core) -> int:
    """Return the registers of a variable of outputs or weights; one of inputs takes one."""
    return config.nr // core.lanes(workload.types.acc)


def registers_left(workload: Conv2dWorkload, config: DataflowConfig, core: Core) -> int:
    """Return the registers that the variables of a configuration leave, 0 or more."""
    vectors = vectors_of(workload, config, core)
    kept = vectors * (config.weights + config.outputs) + config.inputs
    return max(0, core.vector_registers - 2 * vectors - 1 - kept)


def is_short(workload: Conv2dWorkload, config: DataflowConfig) -> bool:
    """Whether a period of the names of its registers may be written out."""
    sizes = DataflowGeometry(workload, config).sizes
    return period(sizes, config) * len(sizes.taps) <= MOST_STEPS


def most_weights(workload: Conv2dWorkload, config: DataflowConfig, core: Core) -> int:
    """Return the weights that registers are left for: all taps, anchored at something else."""
    if config.anchor == WEIGHT:
        return 0
    taps = workload.kh * workload.kw * config.channels
    return min(taps, registers_left(workload, config, core) // vectors_of(workload, config, core))


def most_inputs(workload: Conv2dWorkload, config: DataflowConfig, core: Core) -> int:
    """Return the inputs that registers are left for: those of a window, or the earliest ones.

    Windows share columns where these lie side by side and the stride is shorter than the window.
    """
    w, left = workload, registers_left(workload, config, core)
    if config.anchor == WEIGHT:
        height, width = DataflowGeometry(w, config).sizes.inputs
        return min(left, height * width * config.channels, _most_places(w, config))
    if config.anchor == INPUT or w.dilation[1] > 1 or w.stride[1] >= w.kw:
        return 0
    return min(left, w.kh * w.kw * config.channels)


def most_outputs(workload: Conv2dWorkload, config: DataflowConfig, core: Core) -> int:
    """Return the outputs that registers are left for: those of a window, or the earliest ones."""
    left = registers_left(workload, config, core) // vectors_of(workload, config, core)
    if config.anchor == WEIGHT:
        return min(left, config.tile_h * workload.ow, _most_places(workload, config))
    if config.anchor == OUTPUT or workload.dilation[1] > 1:
        return 0
    return min(left, window_outputs(DataflowGeometry(workload, config).sizes))


def _most_places(workload: Conv2dWorkload, config: DataflowConfig) -> int:
    """Anchored at weights, places in registers are written out for each tap."""
    return MOST_STEPS * 2 // (workload.kh * workload.kw * config.channels)
