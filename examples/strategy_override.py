"""Overrule the cost model for one layer, and see what it thinks of that.

python examples/strategy_override.py
"""

from __future__ import annotations

import zoo

import tvm_blislike
from tvm_blislike import Config, Workload, native_core
from tvm_blislike.choose.strategy import Strategy


def main() -> None:
    """Compute the first layer of a SqueezeNet in blocks of 1 x 4 pixels."""
    usual = Strategy(native_core(), threads=1)

    def override(workload: Workload) -> Config | None:
        if workload.kind != "conv2d" or workload.ci != 3:
            return None  # leave it to the cost model
        return usual.choose(workload).config.with_fields(mr=4, tile_h=1, tile_w=4)

    model = zoo.build("squeezenet1_1", image=64)
    for strategy in (None, override):
        compiled = tvm_blislike.compile(model, threads=1, override=strategy)
        layer = compiled.explain().layers[0]
        print(f"{layer.microkernel}: {layer.predicted_ms:.3f} ms predicted, {layer.reason}")


if __name__ == "__main__":
    main()
