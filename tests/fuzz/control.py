"""Random nodes of control flow and of sequences."""

from __future__ import annotations

import numpy as np
from graphs import Graph, Tensor
from onnx import helper


def if_(g: Graph) -> None:
    """If between two small branches that read tensors around them."""
    x = g.tensor(rank=(1, 2, 3, 4))
    constant = g.chance(0.5)
    value = np.array(g.chance(0.5))
    condition = g.constant(value) if constant else g.input(value)
    g.node("If", [condition], then_branch=_branch(g, x, "then"), else_branch=_branch(g, x, "else"))


def _branch(g: Graph, x: Tensor, name: str):
    """Return a branch of one or two elementwise nodes; its result has the shape of x."""
    operators = [
        g.pick(["Relu", "Neg", "Abs", "Sigmoid", "Identity"]) for _ in range(g.integer(1, 2))
    ]
    names = [x.name, *(g.name(f"{name}_") for _ in operators)]
    nodes = [
        helper.make_node(operator, [names[i]], [names[i + 1]])
        for i, operator in enumerate(operators)
    ]
    element = helper.np_dtype_to_tensor_dtype(x.value.dtype)
    output = helper.make_tensor_value_info(names[-1], element, x.shape)
    return helper.make_graph(nodes, name, [], [output])


NODES = {if_: 1}
