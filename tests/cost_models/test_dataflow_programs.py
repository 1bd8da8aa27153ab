"""Programs of dataflows: what the paper's table 1 counts, and what registers hold."""

from __future__ import annotations

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_dataflow.anchors import period, program
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.estimate import moves
from tvm_blislike.cost_models.conv2d_dataflow.program import Sizes, Step, Use

ANCHORS = (OUTPUT, WEIGHT, INPUT)
SIZES = Sizes(12, 12, 3, 3, 1, (1, 1), (1, 1))


def counted(anchor: str, sizes: Sizes = SIZES, **kept: int):
    config = DataflowConfig(anchor=anchor, **kept)
    config = config.with_fields(unroll=period(sizes, config))
    return moves(program(sizes, config))


def test_basic_dataflows_move_what_the_algorithms_say() -> None:
    """Anchored at outputs: E stores, R * E loads of each other kind; and so on (algorithms 1-3)."""
    outputs, taps, inputs = 144, 9, 196
    assert counted(OUTPUT) == (1296, 1296, 1296, outputs, outputs)
    assert counted(WEIGHT) == (1296, 1296, taps, 1296, 1296)
    assert counted(INPUT) == (1296, inputs, 1296, 1296, 1296)


def test_a_variable_for_weights_or_inputs_saves_a_load_for_each_output() -> None:
    """Table 1, output stationary: E reads less for each variable, but the first load of each."""
    basic = counted(OUTPUT)
    for kept in range(10):
        assert counted(OUTPUT, weights=kept).weights == basic.weights - kept * 144 + kept
    # Six of the nine inputs are shared with the window before; the first one of a row loads all.
    assert counted(OUTPUT, inputs=9).inputs == 12 * (9 + 11 * 3)


def test_a_variable_for_outputs_saves_reads_and_writes() -> None:
    """Table 1: R reads and writes anchored at weights, about H of both anchored at inputs."""
    basic = counted(WEIGHT)
    for kept in range(12):
        found = counted(WEIGHT, outputs=kept)
        assert (basic.outputs - found.outputs, basic.stored - found.stored) == (8 * kept, 8 * kept)
    whole = counted(INPUT, outputs=9)
    # Every output is loaded and stored once for each row of the window.
    assert (whole.outputs, whole.stored) == (3 * 144, 3 * 144)


def simulated(sizes: Sizes, config: DataflowConfig) -> np.ndarray:
    """Run a program on integers; registers hold places, so that a wrong one is seen at once."""
    sums = np.zeros((sizes.rows, sizes.columns), int)
    weights, inputs, outputs = {}, {}, {}

    def operand(use: Use, registers: dict, place: tuple) -> None:
        if use.load:
            registers[use.register] = place
        assert use.register < 0 or registers[use.register] == place, (use, place)

    def run(y: int, x: int, step: Step) -> None:
        (sh, sw), (dh, dw) = sizes.stride, sizes.dilation
        pixel = (y * sh + step.tap[0] * dh, x * sw + step.tap[1] * dw, step.tap[2])
        assert pixel[0] < sizes.inputs[0] and pixel[1] < sizes.inputs[1]
        operand(step.data, inputs, pixel)
        operand(step.weight, weights, step.tap)
        if step.out.load:
            assert step.out.register not in outputs
            outputs[step.out.register] = (y, x)
        assert step.out.register < 0 or outputs[step.out.register] == (y, x)
        sums[y, x] += 1
        if step.out.store:
            del outputs[step.out.register]

    for rows in program(sizes, config):
        weights |= dict(enumerate(rows.weights))
        inputs |= dict(enumerate(rows.inputs))
        outputs |= dict(enumerate(rows.outputs))
        for y in range(rows.first, rows.first + rows.count):
            for columns in rows.columns:
                for chunk in range(columns.first, columns.first + columns.count):
                    for step in columns.steps:
                        run(y + step.y, chunk * config.unroll + step.x, step)
        for place, register in [(place, r) for r, place in enumerate(rows.stored)]:
            assert outputs.pop(register) == place
    assert not outputs
    return sums


@given(
    st.sampled_from(ANCHORS),
    st.builds(
        Sizes,
        *[st.integers(1, 9)] * 2,
        *[st.integers(1, 5)] * 2,
        st.integers(1, 3),
        st.tuples(*[st.integers(1, 3)] * 2),
        st.tuples(st.integers(1, 2), st.just(1)),
    ),
    st.tuples(*[st.integers(0, 12)] * 3),
    st.integers(1, 2),
)
@examples(300)
def test_registers_hold_what_is_multiplied(anchor, sizes, kept, times) -> None:
    """Each output meets each tap once, and each register holds the place that a step means."""
    weights, inputs, outputs = kept
    weights = min(weights, len(sizes.taps)) if anchor != WEIGHT else 0
    if anchor == WEIGHT:
        outputs = min(outputs, sizes.rows * sizes.columns)
        inputs = min(inputs, np.prod(sizes.inputs) * sizes.channels)
    config = DataflowConfig(
        anchor=anchor,
        weights=weights,
        inputs=0 if anchor == INPUT else int(inputs),
        outputs=0 if anchor == OUTPUT else outputs,
    )
    config = config.with_fields(unroll=times * period(sizes, config))
    assert (simulated(sizes, config) == len(sizes.taps)).all()
