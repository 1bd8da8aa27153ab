"""Random graphs compute what ONNX Runtime does, or are refused by name; and the fuzzer itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import Case, case
from effort import EFFORT
from engines import by_onnxruntime
from fuzz import explained, judge
from graphs import Graph, Tensor
from minimize import minimized
from verdicts import AGREES, FAULTS, INTERNAL, WRONG, Verdict, difference, way_of
from workers import verdicts_of

SEEDS = 60 * EFFORT
# Seeds of a process: enough to outweigh its start.
CHUNK = 15


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_random_graphs(first: int) -> None:
    seeds = range(first, min(first + CHUNK, SEEDS))
    found = dict(verdicts_of(seeds, judge, jobs=1))
    faults = [seed for seed in seeds if found[seed].kind in FAULTS]
    assert not faults, "\n".join(f"{s}: {found[s].kind}: {found[s].text}" for s in faults)
    assert sorted(found) == list(seeds)


def test_the_same_seed_is_the_same_case() -> None:
    for seed in range(20):
        first, second = case(seed), case(seed)
        assert first.model.SerializeToString() == second.model.SerializeToString()
        assert first.tolerances == second.tolerances


def test_cases_are_what_onnxruntime_computes() -> None:
    for seed in range(30):
        made = case(seed)
        outputs = by_onnxruntime(made.model, made.inputs)
        for tensor, output, limit in zip(made.outputs, outputs, made.tolerances, strict=True):
            assert not difference(output, tensor.value, limit)


def test_every_implementation_and_instruction_set_has_its_turn() -> None:
    ways = [way_of(seed) for seed in range(150)]
    assert {name for way in ways for name in way.only} >= {
        "conv2d_direct",
        "conv2d_winograd",
        "conv2d_winograd_1d",
        "conv2d_depthwise",
        "conv2d_im2col",
        "gemm",
    }
    assert {way.threads for way in ways} == {1, 2}
    assert "native" in {way.core for way in ways}


def five_nodes() -> Case:
    """Return a chain of five nodes."""
    graph = Graph(np.random.default_rng(0), opset=17)
    x = graph.input(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
    for operator in ("Relu", "Sigmoid", "Neg", "Abs", "Tanh"):
        x = graph.node(operator, [x])[0]
    return Case(0, graph, (x,))


@pytest.mark.parametrize("kind", [WRONG, INTERNAL])
def test_minimizing_finds_the_node(kind: str) -> None:
    def attempt(model, inputs: list[Tensor], outputs: tuple[Tensor, ...]) -> Verdict:
        faulty = any(node.op_type == "Neg" for node in model.graph.node)
        return Verdict(kind if faulty else AGREES)

    model, inputs, verdict = minimized(five_nodes(), kind, attempt)
    assert [node.op_type for node in model.graph.node] == ["Neg"]
    assert verdict.kind == kind
    (x,) = inputs
    (y,) = by_onnxruntime(model, {x.name: x.value})
    np.testing.assert_array_equal(y, -x.value)


def test_wrong_values_shapes_and_types_are_told() -> None:
    expected = np.array([1.0, 2.0], np.float32)
    assert not difference(expected, expected, 0.0)
    assert "error" in difference(expected, np.float32([1, 3]), 0.5)
    assert "float64" in difference(expected, expected.astype("f8"), 0.5)
    assert "[1, 2]" in difference(expected, expected[None], 0.5)
    assert "error inf" in difference(expected, np.float32([1, np.nan]), 0.5)
    assert not difference(np.float32([np.nan]), np.float32([np.nan]), 0.0)
    assert "1 of 2" in difference(np.array([1, 2]), np.array([1, 3]), 9.0)


def crash_at_one(seed: int) -> Verdict:
    """Stand for a seed that ends its process."""
    import os

    if seed == 1:
        os.abort()
    return Verdict(AGREES)


def test_a_crash_costs_its_seed_only() -> None:
    found = dict(verdicts_of(range(4), crash_at_one, jobs=2))
    assert [found[seed].kind for seed in range(4)] == [AGREES, "crash", AGREES, AGREES]


def hang_at_one(seed: int) -> Verdict:
    """Stand for a seed that never ends."""
    import time

    if seed == 1:
        time.sleep(3600)
    return Verdict(AGREES)


def test_a_hang_costs_its_seed_only() -> None:
    found = dict(verdicts_of(range(3), hang_at_one, jobs=1, seconds=20.0))
    assert [found[seed].kind for seed in range(3)] == [AGREES, "hang", AGREES]


def fail_at_one(seed: int) -> Verdict:
    """Stand for a fault of the fuzzer."""
    return Verdict([AGREES][seed])


def test_a_fault_of_the_fuzzer_is_no_agreement() -> None:
    found = dict(verdicts_of(range(2), fail_at_one, jobs=1))
    assert found[1].kind in FAULTS and "IndexError" in found[1].text


def test_the_command_line() -> None:
    script = Path(__file__).with_name("fuzz.py")
    command = [sys.executable, str(script), "0:2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2 agrees"), done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_what_is_explained_is_the_verdict(seed: int) -> None:
    assert f": {judge(seed).kind}" in explained(seed)
