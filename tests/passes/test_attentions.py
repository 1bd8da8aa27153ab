"""Attentions as exporters write them become one kernel each, and what is nearly one does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relax_graphs import assert_same_as_plain_tvm, calls, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.passes.attention.to_kernels import Attentions, attentions
from tvm_blislike.passes.constants import TIDY

BATCH, ROWS, HEADS, DEPTH = 2, 9, 3, 16
HIDDEN = HEADS * DEPTH
SHAPE = (BATCH, ROWS, HIDDEN)
LOWEST = np.float32(np.finfo("float32").min)
KEPT = np.tri(ROWS, dtype=bool)
CONVERTS = op.astype(relax.Var("x", relax.TensorType((), "float64")), "float32").attrs
Emit = Callable[[relax.Expr], relax.Var]
Between = Callable[[Emit, relax.Var], relax.Expr]


def by_heads(emit: Emit, x: relax.Expr, order: tuple[int, ...] = (0, 2, 1, 3)) -> relax.Var:
    split = emit(op.reshape(x, (*SHAPE[:2], HEADS, DEPTH)))
    return emit(op.permute_dims(split, order))


def softmax(emit: Emit, scores: relax.Expr) -> relax.Var:
    return emit(op.nn.softmax(scores, axis=-1))


def merged(emit: Emit, mixed: relax.Expr) -> relax.Expr:
    turned = emit(op.permute_dims(mixed, (0, 2, 1, 3)))
    return op.reshape(turned, SHAPE)


def attention(between: Between) -> tvm.IRModule:
    """Q, K, V of one layout each; `between` makes scores of products."""

    def function(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        keys = by_heads(b.emit, k, (0, 2, 3, 1))
        product = b.emit(op.matmul(by_heads(b.emit, q), keys))
        weights = softmax(b.emit, b.emit(between(b.emit, product)))
        return merged(b.emit, b.emit(op.matmul(weights, by_heads(b.emit, v))))

    return graph(function, SHAPE, SHAPE, SHAPE)


def number(value: float) -> relax.Constant:
    return relax.const(np.float32(value))


def padding() -> relax.Constant:
    mask = np.zeros((BATCH, 1, 1, ROWS), "float32")
    mask[1, :, :, 6:] = -1e4
    return relax.const(mask)


PATTERNS: dict[str, tuple[Between, int]] = {
    "quotient": (lambda e, s: op.divide(s, number(4)), 0),
    "factor": (lambda e, s: op.multiply(number(0.25), s), 0),
    "scale and mask": (lambda e, s: op.add(e(op.divide(s, number(4))), padding()), 1),
    "mask in front": (lambda e, s: op.add(relax.const(random(ROWS, ROWS)), s), 1),
    "bias of heads": (lambda e, s: op.add(s, relax.const(random(1, HEADS, ROWS, ROWS))), 1),
    "two masks": (lambda e, s: op.add(e(op.add(s, padding())), relax.const(random(ROWS, 1))), 2),
    "kept": (lambda e, s: op.where(relax.const(KEPT[:, ::-1].copy()), s, number(LOWEST)), 1),
    "filled": (lambda e, s: op.where(relax.const(KEPT[:, ::-1].copy()), number(-9), s), 1),
    "diagonal": (lambda e, s: op.where(relax.const(KEPT), s, number(LOWEST)), 1),
    "diagonal, filled": (lambda e, s: op.where(relax.const(~KEPT), number(LOWEST), s), 1),
    "diagonal, added": (
        lambda e, s: op.add(s, relax.const(np.where(KEPT, 0, -np.inf).astype("float32"))),
        1,
    ),
}
OTHERWISE: dict[str, Between] = {
    "scale behind a mask": lambda e, s: op.multiply(e(op.add(s, padding())), number(2)),
    "zero for what is masked": lambda e, s: op.where(relax.const(KEPT), s, number(0)),
    "a function of scores": lambda e, s: op.tanh(s),
    "a factor for each key": lambda e, s: op.multiply(s, relax.const(random(ROWS))),
    "reciprocal scores": lambda e, s: op.divide(number(4), s),
}


def only(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module behind the pass; one kernel alone computes there."""
    found = Attentions(native_core(), 2)(TIDY(mod))
    assert operators(found)["call_tir"] == 1
    assert not {"matmul", "nn.softmax", "permute_dims"} & operators(found).keys()
    return found


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    between, masks = PATTERNS[name]
    mod = attention(between)
    (found,) = attentions(TIDY(mod)["main"]).values()
    assert len(found.attention.masks) == masks
    diagonals = [mask for mask in found.attention.masks if mask.view is None]
    assert bool(diagonals) == name.startswith("diagonal")
    only(mod)
    assert_same_as_plain_tvm(mod, threads=1 + masks % 2)


@pytest.mark.parametrize("name", OTHERWISE)
def test_near_misses_are_left_alone(name: str) -> None:
    mod = attention(OTHERWISE[name])
    assert not attentions(TIDY(mod)["main"])


def test_operands_are_read_where_they_lie() -> None:
    mod = only(attention(lambda e, s: op.divide(s, number(4))))
    (call,) = calls(mod, "call_tir")
    assert [arg.name for arg in call.args[1].fields] == ["x0", "x1", "x2"]


def test_scales_of_both_factors_and_a_guard() -> None:
    """As torch's exporters write `scaled_dot_product_attention`."""

    def function(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        root = number(DEPTH**-0.25)
        left = b.emit(op.multiply(by_heads(b.emit, q), root))
        right = b.emit(op.multiply(by_heads(b.emit, k, (0, 2, 3, 1)), root))
        mask = np.where(KEPT & (np.arange(ROWS)[:, None] != 4), 0, -np.inf).astype("float32")
        scores = b.emit(op.add(b.emit(op.matmul(left, right)), relax.const(mask)))
        weights = softmax(b.emit, scores)
        guarded = b.emit(op.where(b.emit(op.isnan(weights)), number(0), weights))
        return merged(b.emit, b.emit(op.matmul(guarded, by_heads(b.emit, v))))

    mod = graph(function, SHAPE, SHAPE, SHAPE)
    (found,) = attentions(TIDY(mod)["main"]).values()
    assert found.attention.guarded
    assert found.attention.scale == pytest.approx(DEPTH**-0.5)
    only(mod)
    assert_same_as_plain_tvm(mod)


def test_one_product_for_queries_keys_and_values() -> None:
    """As vision transformers have it: (batch, rows, 3, heads, depth), turned and taken apart."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        split = b.emit(op.reshape(x, (*SHAPE[:2], 3, HEADS, DEPTH)))
        parts = b.emit(op.permute_dims(split, (2, 0, 3, 1, 4)))
        q, k, v = (b.emit(op.take(parts, relax.const(i), axis=0)) for i in range(3))
        keys = b.emit(op.permute_dims(k, (0, 1, 3, 2)))
        weights = softmax(b.emit, b.emit(op.matmul(q, keys)))
        return merged(b.emit, b.emit(op.matmul(weights, v)))

    mod = graph(function, (*SHAPE[:2], 3 * HIDDEN))
    (call,) = calls(only(mod), "call_tir")
    assert {arg.name for arg in call.args[1].fields} == {"x0"}
    assert_same_as_plain_tvm(mod)


def test_conversions_to_the_same_type() -> None:
    """As Hugging Face computes the softmax in float32, whatever the type of the model."""

    def function(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        def same(x: relax.Expr) -> relax.Var:
            return b.emit(relax.Call(tvm.ir.Op.get("relax.astype"), [x], CONVERTS))

        keys = same(by_heads(b.emit, k, (0, 2, 3, 1)))
        product = same(b.emit(op.matmul(by_heads(b.emit, q), keys)))
        weights = same(softmax(b.emit, product))
        return merged(b.emit, b.emit(op.matmul(weights, by_heads(b.emit, v))))

    only(graph(function, SHAPE, SHAPE, SHAPE))


def test_parts_of_a_split() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        parts = b.emit(op.split(x, 3, axis=2))
        q, k, v = (b.emit(relax.TupleGetItem(parts, i)) for i in range(3))
        keys = by_heads(b.emit, k, (0, 2, 3, 1))
        weights = softmax(b.emit, b.emit(op.matmul(by_heads(b.emit, q), keys)))
        return merged(b.emit, b.emit(op.matmul(weights, by_heads(b.emit, v))))

    mod = graph(function, (*SHAPE[:2], 3 * HIDDEN))
    only(mod)
    assert_same_as_plain_tvm(mod)


def test_heads_and_batch_on_one_axis() -> None:
    """As models with `bmm` have it: masks of four axes, products of three."""

    def function(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        q, k, v = (
            b.emit(op.reshape(by_heads(b.emit, x), (BATCH * HEADS, ROWS, DEPTH))) for x in (q, k, v)
        )
        product = b.emit(op.matmul(q, b.emit(op.permute_dims(k, (0, 2, 1)))))
        scores = b.emit(op.reshape(product, (BATCH, HEADS, ROWS, ROWS)))
        masked = b.emit(op.add(scores, padding()))
        flat = b.emit(op.reshape(masked, (BATCH * HEADS, ROWS, ROWS)))
        mixed = b.emit(op.matmul(softmax(b.emit, flat), v))
        return merged(b.emit, b.emit(op.reshape(mixed, (BATCH, HEADS, ROWS, DEPTH))))

    mod = graph(function, SHAPE, SHAPE, SHAPE)
    only(mod)
    assert_same_as_plain_tvm(mod)


def test_groups_of_heads_that_share_keys() -> None:
    wide = (BATCH, ROWS, 2, DEPTH)

    def repeated(emit: Emit, x: relax.Var) -> relax.Var:
        turned = emit(op.permute_dims(x, (0, 2, 1, 3)))
        more = emit(op.broadcast_to(emit(op.expand_dims(turned, 2)), (BATCH, 2, 2, ROWS, DEPTH)))
        return emit(op.reshape(more, (BATCH, 4, ROWS, DEPTH)))

    def function(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        keys = b.emit(op.permute_dims(repeated(b.emit, k), (0, 1, 3, 2)))
        weights = softmax(b.emit, b.emit(op.matmul(q, keys)))
        return op.matmul(weights, repeated(b.emit, v))

    mod = graph(function, (BATCH, 4, ROWS, DEPTH), wide, wide)
    (call,) = calls(only(mod), "call_tir")
    assert [arg.name for arg in call.args[1].fields] == ["x0", "x1", "x2"]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("read", ["product", "weights"])
def test_what_somebody_else_reads_is_computed(read: str) -> None:
    def function(
        b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var
    ) -> tuple[relax.Expr, ...]:
        product = b.emit(op.matmul(q, k))
        weights = softmax(b.emit, product)
        other = product if read == "product" else weights
        return b.emit(op.matmul(weights, v)), b.emit(op.exp(other))

    mod = graph(function, (3, 5, 16), (3, 16, 7), (3, 7, 16))
    assert not attentions(TIDY(mod)["main"])


def test_other_types_and_axes_are_left_alone() -> None:
    def across(b: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        weights = b.emit(op.nn.softmax(b.emit(op.matmul(q, k)), axis=1))
        return op.matmul(weights, v)

    def half(b: relax.BlockBuilder, *operands: relax.Var) -> relax.Expr:
        q, k, v = (b.emit(op.astype(x, "float16")) for x in operands)
        return op.matmul(softmax(b.emit, b.emit(op.matmul(q, k))), v)

    for function in (across, half):
        mod = graph(function, (3, 5, 16), (3, 16, 7), (3, 7, 16))
        assert not attentions(TIDY(mod)["main"])
