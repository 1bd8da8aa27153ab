"""The choices of `conv2d_dataflow`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv_geometry import TiledConfig

# What may be stationary.
OUTPUT, WEIGHT, INPUT = "output", "weight", "input"


@dataclass(frozen=True, kw_only=True)
class DataflowConfig(TiledConfig):
    """Which operand a convolution is anchored at, and what else stays in vector registers.

    A variable is `nr` outputs, the weights of `nr` outputs, or a group of input channels that
    serves them all; a slab is `tile_h` whole rows of outputs.

    Parameters
    ----------
    ks : int
        Input channels in a group, those that a multiply-add takes.
    channels : int
        Groups of input channels of one pass over a slab.
    anchor : str
        The anchoring stationarity, "output", "weight" or "input": what is used up before the next.
    weights, inputs, outputs : int
        Auxiliary stationarities: variables of each kind that stay in registers beside the anchor.
    unroll : int
        Secondary unrolling: outputs of a row (times the stride: inputs) in one iteration.
    loop_order : str
        The outer loop: "rows" (slabs) or "channels" (of outputs).
    """

    implementation: str = "conv2d_dataflow"
    ks: int = 1
    channels: int = 1
    anchor: str = OUTPUT
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    unroll: int = 1
    loop_order: str = ""

    @property
    def kind(self) -> tuple[str | int, ...]:
        """See `Config.kind`."""
        stationary = (self.anchor, self.weights, self.inputs, self.outputs)
        return (*super().kind, self.channels, *stationary)
