"""Choice over a graph: the solver against trying every combination."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_blislike.choose.layout_choice import Node, Option, choose_options

LAYOUTS = ("NCHW", "NHWC", "NCHW16c")


def seconds(nodes: list[Node], taken: dict[Hashable, int]) -> float:
    """Time of a graph: its operators and one transform per value and layout that is missing."""
    total, moved = 0.0, set()
    writes = {n.result: n.options[taken[n.result]].writes for n in nodes}
    for node in nodes:
        option = node.options[taken[node.result]]
        total += option.seconds
        for value in node.inputs:
            if writes[value] != option.reads:
                moved.add((value, option.reads))
    moving = {n.result: n.transform_seconds for n in nodes}
    return total + sum(moving[value] for value, _ in moved)


def fastest(nodes: list[Node]) -> float:
    ranges = [range(len(node.options)) for node in nodes]
    names = [node.result for node in nodes]
    every = itertools.product(*ranges)
    return min(seconds(nodes, dict(zip(names, taken, strict=True))) for taken in every)


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Up to seven operators with one to three options, each reading one to three values."""
    micros = st.integers(0, 20).map(lambda t: t * 1e-6)
    option = st.builds(Option, st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), micros)
    nodes = [Node(0, (), (Option("", "NCHW"),), draw(micros))]
    for index in range(1, draw(st.integers(2, 7))):
        inputs = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=3))
        options = draw(st.lists(option, min_size=1, max_size=3))
        nodes.append(Node(index, tuple(inputs), tuple(options), draw(micros)))
    return nodes


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_no_combination_is_faster(nodes: list[Node]) -> None:
    taken = choose_options(nodes)
    assert seconds(nodes, taken) == pytest.approx(fastest(nodes), abs=1e-9)


def chain(moving: float) -> list[Node]:
    """Two layers that would each be fastest in a layout of their own."""
    first = (Option("NCHW", "NCHW", 5e-6), Option("NCHW", "NHWC", 9e-6))
    second = (Option("NCHW", "NCHW", 9e-6), Option("NHWC", "NHWC", 5e-6))
    return [
        Node("x", (), (Option("", "NCHW"),), moving),
        Node("first", ("x",), first, moving),
        Node("second", ("first",), second, moving),
    ]


def test_layers_disagree_only_when_the_transform_pays() -> None:
    assert choose_options(chain(1e-6)) == {"x": 0, "first": 0, "second": 1}
    dear = choose_options(chain(50e-6))
    assert dear["first"] == dear["second"]


def test_readers_share_a_transform() -> None:
    either = (Option("NCHW", "NCHW", 6e-6), Option("NHWC", "NHWC", 4e-6))
    nodes = [Node("x", (), (Option("", "NCHW"),), 5e-6)]
    nodes += [Node(i, ("x",), either, 1e-3) for i in range(3)]
    assert set(choose_options(nodes).values()) == {0, 1}
    assert choose_options(nodes[:2]) == {"x": 0, 0: 0}


def test_a_long_graph_with_residuals_is_solved_in_no_time() -> None:
    either = tuple(Option(a, b, 10e-6) for a in LAYOUTS for b in LAYOUTS)
    nodes = [Node(0, (), (Option("", "NCHW"),), 5e-6)]
    for i in range(1, 200):
        nodes.append(Node(i, (i - 1,) if i % 2 else (i - 1, max(0, i - 3)), either, 5e-6))
    taken = choose_options(nodes)
    assert seconds(nodes, taken) == pytest.approx(199 * 10e-6)


def test_the_solver_writes_nothing() -> None:
    """What a command prints as JSON stays JSON: in a process, for C flushes when it ends."""
    script = """if True:
        from tvm_blislike.choose.layout_choice import Node, Option, choose_options
        either = (Option("NCHW", "NCHW"), Option("NHWC", "NHWC"))
        choose_options([Node("x", (), either, 1e-6), Node("y", ("x",), either, 1e-6)])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
