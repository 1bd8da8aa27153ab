"""The time loop of recurrent layers by itself, in any register block, beside a plain cell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from reference.recurrent import FUNCTIONS, recurrent

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.marks import REGISTER_BYTES, marked
from tvm_blislike.model.recurrent import Activation, Cell
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.recurrent.blocks import Block, Sizes, block_for
from tvm_blislike.passes.recurrent.kernel import kernel
from tvm_blislike.passes.recurrent.layer import Layer, needs_recurrent_bias, phases_of
from tvm_blislike.schedules.lowering import lower as lowering
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED

NATIVE = native_core()
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
KNOWN = {name.lower(): function for name, function in FUNCTIONS.items()}
DIRECTIONS = ((False,), (True,), (False, True))


def cell_of(
    kind: str, hidden: int, reverse: tuple[bool, ...], names: tuple[str, ...], **more: object
) -> Cell:
    """Return a cell whose functions all have the numbers 0.3 and 0.6."""
    functions = tuple(Activation(name, 0.3, 0.6) for name in names)
    return Cell(kind, hidden, reverse, (functions,) * len(reverse), **more)


def operands_of(cell: Cell, steps: int, batch: int, inputs: int) -> dict[str, np.ndarray]:
    """Return random operands of ONNX; some rows end early, the first at once."""
    rng, directions = np.random.default_rng(cell.hidden), cell.directions
    rows, state = cell.gates * cell.hidden, cell.state_shape(batch)
    shapes = {
        "x": (batch, steps, inputs) if cell.batch_first else (steps, batch, inputs),
        "w": (directions, rows, inputs),
        "r": (directions, rows, cell.hidden),
        "bias": (directions, 2 * rows),
        "h": state,
        "c": state,
        "peepholes": (directions, 3 * cell.hidden),
    }
    found = {
        name: rng.uniform(-0.7, 0.7, shapes[name]).astype("float32")
        for name in ("x", "w", "r", *cell.operands)
        if name != "lengths"
    }
    if "lengths" in cell.operands:
        found["lengths"] = np.arange(batch, dtype="int32") % (steps + 1)
    return found


def in_blocks(layer: Layer, weights: np.ndarray) -> np.ndarray:
    """Return (directions, gates * hidden, ...) as (directions, gates, blocks, nr, ...)."""
    cell, (directions, rows, *rest) = layer.cell, weights.shape
    gates = rows // cell.hidden
    padded = np.zeros((directions, gates, layer.padded, *rest), "float32")
    padded[:, :, : cell.hidden] = weights.reshape(directions, gates, cell.hidden, *rest)
    return padded.reshape(directions, gates, layer.groups, layer.block.nr, *rest)


def arranged(layer: Layer, operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the kernel takes, computed and packed by NumPy."""
    cell = layer.cell
    x = operands["x"].reshape(layer.steps * layer.batch, -1)
    product = np.einsum("ti,dri->dtr", x, operands["w"])
    found = {name: operands[name] for name in ("lengths", "h", "c") if name in operands}
    if "bias" in operands:
        of_inputs, of_states = np.split(operands["bias"], 2, axis=1)
        of_states = of_states.copy()
        if needs_recurrent_bias(cell):
            last = (cell.gates - 1) * cell.hidden
            found["bias"] = in_blocks(layer, of_states[:, last:]).reshape(cell.directions, -1)
            of_states[:, last:] = 0
        product = product + (of_inputs + of_states)[:, None]
    blocks = in_blocks(layer, product.transpose(0, 2, 1))
    found["gates"] = blocks.transpose(4, 0, 2, 1, 3)
    recurrents = in_blocks(layer, operands["r"])
    for phase, gates in enumerate(layer.phases):
        found[f"r{phase}"] = recurrents[:, list(gates)].transpose(0, 2, 4, 1, 3)
    if "peepholes" in operands:
        found["peepholes"] = in_blocks(layer, operands["peepholes"]).reshape(
            cell.directions, 3, layer.padded
        )
    return found


def computed(layer: Layer, operands: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Build and run the kernel; results begin as no numbers."""
    threads = max(layer.block.parts, layer.cell.directions * layer.block.row_parts)
    registers = NATIVE.vector_registers * NATIVE.vector_bits // 8
    func = kernel(layer).with_attr({REGISTER_BYTES: registers, **IS_SCHEDULED})
    target = tvm.target.Target(NATIVE.target_config(threads))
    with target:
        mod = marked(lowering.lower(tvm.IRModule({"main": func})))
        library = tir_pipeline.build(mod, target, None)
    given, arrays = arranged(layer, operands), {}
    for name, (shape, dtype) in layer.parameters.items():
        value = given.get(name, np.full(shape, np.nan, dtype) if name.startswith("y") else None)
        assert value.shape == shape, name
        arrays[name] = tvm.runtime.tensor(np.ascontiguousarray(value, dtype))
    library["main"](*arrays.values())
    return [arrays[name].numpy() for name in arrays if name.startswith("y")]


def expected(cell: Cell, operands: dict[str, np.ndarray]) -> list[np.ndarray]:
    functions = [
        [lambda v, a=each: KNOWN[a.name](v, a.alpha, a.beta) for each in direction]
        for direction in cell.activations
    ]
    settings = {
        "clip": cell.clip,
        "linear_before_reset": cell.linear_before_reset,
        "input_forget": cell.input_forget,
        "layout": int(cell.batch_first),
    }
    return recurrent(cell.kind, operands, functions, cell.reverse, **settings)


def assert_right(cell: Cell, steps: int, batch: int, block: Block) -> None:
    operands = operands_of(cell, steps, batch, inputs=3)
    layer = Layer(cell, steps, batch, block, NATIVE.isa.lane_operand)
    results = computed(layer, operands), expected(cell, operands)
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=3e-5, atol=3e-5)


def optional(kind: str) -> st.SearchStrategy[tuple[str, ...]]:
    names = ("bias", "lengths", "h", *(("c", "peepholes") if kind == "LSTM" else ()))
    return st.sets(st.sampled_from(names)).map(lambda s: tuple(n for n in names if n in s))


@pytest.mark.parametrize("kind", [*USUAL])
@given(st.data())
@examples(4)
def test_any_block(kind: str, data: st.DataObject) -> None:
    cell = cell_of(
        kind,
        data.draw(st.integers(1, 70)),
        data.draw(st.sampled_from(DIRECTIONS)),
        USUAL[kind],
        clip=data.draw(st.sampled_from([0.0, 0.4])),
        linear_before_reset=data.draw(st.booleans()),
        input_forget=kind == "LSTM" and data.draw(st.booleans()),
        batch_first=data.draw(st.booleans()),
        operands=data.draw(optional(kind)),
    )
    mr, vectors = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    block = Block(mr, vectors, NATIVE.lanes(), data.draw(st.sampled_from([1, 2, 4])))
    parts, row_parts = data.draw(st.sampled_from([(0, 1), (2, 1), (0, 2), (0, 3)]))
    if block.groups(cell.hidden) >= parts:
        block = replace(block, parts=parts, row_parts=row_parts)
    assert_right(cell, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), block)


@pytest.mark.parametrize("batch", [2, 5, 7])
@pytest.mark.parametrize("mr", [1, 2, 3])
def test_threads_divide_all_rows(batch: int, mr: int) -> None:
    cell = cell_of("GRU", 19, (False, True), USUAL["GRU"], operands=("lengths", "h"))
    assert_right(cell, 3, batch, Block(mr, 1, NATIVE.lanes(), row_parts=3))


@pytest.mark.parametrize(
    ("batch", "directions", "threads", "parts", "row_parts"),
    [
        (8, 1, 2, 0, 2),
        (8, 1, 1, 0, 1),
        # A row of its own would read all weights by each thread.
        (1, 1, 2, 2, 1),
        (8, 2, 2, 0, 1),
        (8, 2, 4, 0, 2),
        (6, 1, 4, 4, 1),
    ],
)
def test_what_threads_divide(
    batch: int, directions: int, threads: int, parts: int, row_parts: int
) -> None:
    """Directions first; then rows where all threads have as many, units otherwise."""
    block = block_for(Sizes(batch, 256, directions, (4,)), Core.named("zen4"), threads)
    assert (block.parts, block.row_parts) == (parts, row_parts)
    assert block.mr * block.each(batch) * block.row_parts >= batch


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_functions(name: str) -> None:
    cell = cell_of("GRU", 19, (False, True), (name, name), operands=("bias", "h"))
    assert_right(cell, 3, 2, Block(2, 1, NATIVE.lanes()))


@pytest.mark.parametrize("kind", [*USUAL])
@pytest.mark.parametrize("hidden", [1, 33, 128])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_chosen_block(kind: str, hidden: int, batch: int) -> None:
    cell = cell_of(kind, hidden, (False,), USUAL[kind], operands=("bias", "lengths"))
    phases = tuple(len(gates) for gates in phases_of(cell))
    block = block_for(Sizes(batch, hidden, 1, phases), NATIVE, 1)
    assert_right(cell, 6, batch, block)


def test_both_directions_run_as_two_tasks() -> None:
    cell = cell_of("LSTM", 16, (False, True), USUAL["LSTM"])
    text = kernel(Layer(cell, 4, 1, Block(1, 1, NATIVE.lanes()))).script()
    assert text.count("T.parallel(2)") == 1
