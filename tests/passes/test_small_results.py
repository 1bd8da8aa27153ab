"""Layers whose small results count are computed without what errs by the largest operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from relax_graphs import execute, graph
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.passes.small_results import layers_of_small_results
from tvm_blislike.pipeline import compile_module

NATIVE = native_core()
RNG = np.random.default_rng(5)
ROWS, WIDTH = 128, 256
WEIGHTS = (RNG.standard_normal((WIDTH, WIDTH)) / 16).astype("float32")
Behind = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def number(value: np.ndarray | float) -> relax.Constant:
    return relax.const(np.asarray(value, "float32"))


def over_own_norm(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    """As torch's `normalize` is exported."""
    squares = b.emit(op.sum(b.emit(op.multiply(y, y)), [-1], keepdims=True))
    norm = b.emit(op.maximum(b.emit(op.sqrt(squares)), number(1e-12)))
    return b.emit(op.divide(y, b.emit(op.broadcast_to(norm, y.ty.shape))))


def in_heads(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    """Of keys, which lie between queries and values."""
    biased = b.emit(op.add(y, number(np.repeat([1, 0, 1, 1], WIDTH // 4))))
    heads = b.emit(op.permute_dims(b.emit(op.reshape(biased, (ROWS, 4, WIDTH // 4))), [1, 0, 2]))
    return over_own_norm(b, b.emit(op.take(heads, relax.const(np.int64(1)), axis=0)))


def logarithm(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return b.emit(op.log(b.emit(op.maximum(b.emit(op.square(y)), number(1e-20)))))


def reciprocal(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return b.emit(op.power(b.emit(op.add(op.abs(y), number(1e-12))), number(-0.5)))


def second_product(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return logarithm(b, b.emit(op.matmul(b.emit(op.nn.relu(y)), number(np.abs(WEIGHTS)))))


def signs(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return b.emit(op.sign(y))


def sums_of_signs(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    rows = b.emit(op.reshape(signs(b, b.emit(op.add(y, number(0.5)))), (ROWS, WIDTH)))
    return b.emit(op.matmul(rows, number(np.sign(WEIGHTS))))


TELLING: dict[str, Behind] = {
    "norm": over_own_norm,
    "norm of heads": in_heads,
    "logarithm": logarithm,
    "power": reciprocal,
    "second product": second_product,
    "sign": signs,
    "sums of signs": sums_of_signs,
}


def softmax(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return b.emit(op.nn.softmax(y, axis=-1))


def layer_norm(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return b.emit(op.nn.layer_norm(y, number(np.ones(WIDTH)), number(np.zeros(WIDTH)), [-1]))


def biased(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    return over_own_norm(b, b.emit(op.add(y, number(np.full(WIDTH, 0.5)))))


def steady(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    mean = b.emit(op.mean(b.emit(op.square(y)), [-1], keepdims=True))
    return b.emit(op.multiply(y, b.emit(op.rsqrt(b.emit(op.add(mean, number(1e-6)))))))


OTHERS: dict[str, Behind] = {
    "softmax": softmax,
    "layer norm": layer_norm,
    "bias": biased,
    "root mean square norm": steady,
}


def product(behind: Behind) -> relax.Function:
    return graph(lambda b, x: behind(b, b.emit(op.matmul(x, number(WEIGHTS)))), (ROWS, WIDTH))


def marked(mod: object) -> int:
    return len(layers_of_small_results(mod["main"]))


@pytest.mark.parametrize("name", TELLING)
def test_layers_whose_small_results_count(name: str) -> None:
    assert marked(product(TELLING[name])) == (2 if name == "second product" else 1)


@pytest.mark.parametrize("name", OTHERS)
def test_others_may_err(name: str) -> None:
    assert marked(product(OTHERS[name])) == 0


def test_what_is_only_divided_may_err() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var, by: relax.Var) -> relax.Expr:
        return b.emit(op.divide(b.emit(op.matmul(x, number(WEIGHTS))), by))

    assert marked(graph(function, (ROWS, WIDTH), (ROWS, 1))) == 0


def test_convolutions_through_parts_and_pools() -> None:
    weights = number(RNG.standard_normal((16, 8, 3, 3)))

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(op.nn.conv2d(x, weights, padding=1))
        half = b.emit(op.nn.max_pool2d(b.emit(op.strided_slice(y, [1], [0], [8])), [2, 2]))
        both = b.emit(op.concat([half, half], axis=1))
        return b.emit(op.log(b.emit(op.abs(both))))

    assert marked(graph(function, (1, 8, 8, 8))) == 1


@pytest.mark.parametrize("name", ["norm", "norm of heads", "logarithm"])
@pytest.mark.parametrize("forced", [False, True])
def test_rows_of_zeros_stay_zeros(name: str, forced: bool) -> None:
    """Padded tokens beside others; what would lose them is asked for by name where forced."""
    mod = product(TELLING[name])
    data = RNG.standard_normal((ROWS, WIDTH)).astype("float32")
    data[ROWS // 2 :] = 0
    only = Constraints(only=("gemm_strassen",)) if forced else Constraints()
    executable, report = compile_module(mod, Strategy(NATIVE, 1, constraints=only))
    assert "strassen" not in str({layer.implementation for layer in report.layers})
    (result,) = execute(executable, [data])
    zeros = result[ROWS // 2 :]
    assert np.all(zeros == zeros[0])


def test_the_same_product_by_itself_is_one_of_sums() -> None:
    """Else the test above could not fail."""
    mod = product(softmax)
    only = Constraints(only=("gemm_strassen",))
    _, report = compile_module(mod, Strategy(NATIVE, 1, constraints=only))
    assert "gemm_strassen" in {layer.implementation for layer in report.layers}
