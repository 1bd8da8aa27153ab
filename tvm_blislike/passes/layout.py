"""One layout per tensor: each convolution gets the layouts of its choice, the rest follows.

TVM's ConvertLayout carries the layouts through elementwise operators, pooling and concatenation
and puts a transform where two neighbours disagree. The choice itself is noted in the attributes
of the call: `data_layout`, and `out_layout`; the weights stay OIHW until they are packed.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm_blislike.passes.constants import fold_constants
from tvm_blislike.passes.workloads import conv2d_workload
from tvm_blislike.strategy import Strategy


def choose_layouts(strategy: Strategy) -> tvm.transform.Pass:
    """Return the pass that converts a module to the layouts of the strategy's choices."""

    def desired(call: relax.Call) -> dict[str, list[str]]:
        workload = conv2d_workload(call)
        choice = strategy.choose(workload) if workload is not None else None
        if choice is None or choice.config is None or not choice.config.data_layout:
            return {}
        layouts = [choice.config.data_layout, "OIHW", choice.config.out_layout]
        return {"relax.nn.conv2d": layouts}

    return tvm.transform.Sequential(
        [
            relax.transform.ConvertLayout({}, layout_cb=desired),
            relax.transform.Normalize(),
            relax.transform.CanonicalizeBindings(),
            fold_constants,
            relax.transform.DeadCodeElimination(),
        ],
        name="blislike.ChooseLayouts",
    )



