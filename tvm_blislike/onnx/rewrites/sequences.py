"""Sequences of several lengths in one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def reverse_sequence(site: Site) -> Sequence[str]:
    """Write `ReverseSequence` as a choice of rows, each the rest of one step of one sequence.

    ONNX, ReverseSequence-10.
    """
    shape = site.shape()
    batch, time = site.attribute("batch_axis", 1), site.attribute("time_axis", 0)
    if {batch, time} != {0, 1} or len(shape) < 2:
        site.refuse(f"its batch_axis is {batch}, its time_axis {time}; they are to be 0 and 1")
    if site.shape(1) != (shape[batch],):
        site.refuse(f"its {shape[batch]} sequences have lengths of the shape {site.shape(1)}")
    rows = site.reshaped(site.node.input[0], [shape[0] * shape[1], math.prod(shape[2:])])
    chosen = site.add("Gather", rows, _places(site, shape[time], batch, time), axis=0)
    return [site.reshaped(chosen, shape)]


def _places(site: Site, steps: int, batch: int, time: int) -> str:
    """Return the row that each row takes, counted over both axes."""
    shape = site.shape()
    step = np.arange(steps, dtype=np.int64).reshape([-1, 1] if time == 0 else [1, -1])
    which = np.arange(shape[batch], dtype=np.int64).reshape([-1, 1] if batch == 0 else [1, -1])
    stride = [shape[1], 1]
    lengths = site.known(1)
    if lengths is not None:
        lengths = lengths.reshape(which.shape)
        taken = np.where(step < lengths, lengths - 1 - step, step)
        return site.constant((taken * stride[time] + which * stride[batch]).ravel())
    steps_name = site.constant(np.broadcast_to(step, shape[:2]))
    ends = site.reshaped(site.cast(site.node.input[1], np.int64), which.shape)
    back = site.add("Sub", ends, site.constant(step + 1))
    taken = site.add("Where", site.add("Less", steps_name, ends), back, steps_name)
    scaled = site.add("Mul", taken, site.number(stride[time]))
    places = site.add("Add", scaled, site.constant(which * stride[batch]))
    return site.reshaped(places, [math.prod(shape[:2])])
