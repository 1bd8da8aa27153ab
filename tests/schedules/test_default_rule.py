"""The default CPU rule: arithmetic against numpy, structure of the loops."""

import math
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from default_graphs import (
    LANES,
    RNG,
    TARGET,
    check,
    data,
    graph,
    kernels,
    loops,
    pool,
    run,
    scheduled,
    vector_lengths,
)
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.script import tirx as T

from tvm_blislike.cost_models.parallel import divides_rows
from tvm_blislike.model.marks import DEFAULT_RULE
from tvm_blislike.schedules.default import rule
from tvm_blislike.schedules.default.rule import DefaultCPU
from tvm_blislike.schedules.lowering.rewrite import collect, substitute


@pytest.mark.parametrize("shape", [(1, 8, 13, 13), (2, 3, 7, 5), (1, 1), (1000,), (1, 17, 1, 1)])
def test_elementwise_chain(shape):
    x, y = data(*shape), data(*shape)
    check(lambda a, b: op.nn.relu(op.add(op.multiply(a, b), a)), np.maximum(x * y + x, 0), x, y)


def test_elementwise_chain_becomes_one_parallel_vector_loop():
    x = data(1, 64, 56, 57)
    (kernel,) = check(lambda a, b: op.nn.relu(op.add(a, b)), np.maximum(x + x, 0), x, x)
    assert len(loops(kernel, tirx.ForKind.PARALLEL)) == 1
    assert LANES in vector_lengths(kernel)


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((1, 12, 56, 56, LANES), 2),  # half of the rows, of all blocks of channels
        ((1, 12, 55, 55, LANES), 55),  # single rows, divided 28 to 27
        ((1, 1024, 7, 7, LANES), 1024),  # rows would be 4 to 3
        ((2, 12, 57, 57, LANES), 2),  # an image each
    ],
)
def test_threads_divide_a_blocked_image_as_convolutions_do(shape, parts):
    x, scale = data(*shape), data(1, shape[1], 1, 1, LANES)
    (kernel,) = check(
        lambda a, b: op.nn.relu(op.multiply(a, b)), np.maximum(x * scale, 0), x, scale
    )
    (loop,) = loops(kernel, tirx.ForKind.PARALLEL)
    assert int(loop.extent) == parts
    elements = math.prod(shape)
    by_rows = shape[2] // parts * shape[3] * LANES
    assert step_of(loop) == (
        by_rows if divides_rows(shape[2], 2) and shape[0] == 1 else elements // parts
    )


def step_of(loop):
    """Return by how many elements what a loop stores moves in one iteration."""
    stores = []
    tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, lambda x: stores.append(x) or 0))
    indices, shape = stores[0].indices, [int(extent) for extent in stores[0].buffer.shape]
    inside = {v: 0 for index in indices for v in collect(index, tirx.Var)}
    simplify = tvm.sym.Analyzer().simplify
    first, second = (
        np.ravel_multi_index(
            [int(simplify(substitute(i, {**inside, loop.loop_var: at}))) for i in indices], shape
        )
        for at in (0, 1)
    )
    return second - first


def test_small_work_stays_serial():
    x = data(1, 8, 7, 7)
    (kernel,) = check(op.nn.relu, np.maximum(x, 0), x)
    assert not loops(kernel, tirx.ForKind.PARALLEL)


@pytest.mark.parametrize("bias", [(1, 8, 1, 1), (8, 1, 1), (1, 1, 1, 9), (1,)])
def test_broadcast_add(bias):
    x, y = data(2, 8, 6, 9), data(*bias)
    check(op.add, x + y, x, y)


@pytest.mark.parametrize("block", [1, 8, 16, 24, 57])
@pytest.mark.parametrize("how", ["max", "avg"])
def test_blocked_pool(block, how):
    x = data(1, 2, 13, 12, block)
    function, reference = {
        "max": (op.nn.max_pool2d, np.nanmax),
        "avg": (op.nn.avg_pool2d, np.nanmean),
    }[how]
    padding = (1, 0, 1, 1)
    check(
        lambda a: function(a, (3, 2), (2, 1), padding, layout=f"NCHW{block}c"),
        pool(x, (3, 2), (2, 1), padding, reference),
        x,
    )


@pytest.mark.parametrize("shape", [(1, 3, 12, 12), (2, 5, 7, 19)])
@pytest.mark.parametrize("stride", [1, 2])
def test_plain_pool(shape, stride):
    x, padding = data(*shape), (1, 1, 1, 1)
    strides = (stride, stride)
    expected = pool(x, (3, 3), strides, padding, np.nanmax)
    check(lambda a: op.nn.max_pool2d(a, (3, 3), strides, padding), expected, x)


def test_blocked_pool_has_no_condition_on_a_lane():
    x = data(1, 4, 28, 28, LANES)
    expected = pool(x, (3, 3), (2, 2), (1, 1, 1, 1), np.nanmax)
    layout = f"NCHW{LANES}c"
    (kernel,) = check(
        lambda a: op.nn.max_pool2d(a, (3, 3), (2, 2), (1, 1, 1, 1), layout=layout), expected, x
    )
    assert vector_lengths(kernel) == {LANES}
    assert "if_then_else" not in kernel.script()


@pytest.mark.parametrize("shape", [(1, 4, 7, 7, 16), (2, 3, 5, 1, 24), (1, 64, 7, 7), (1, 9, 1, 3)])
def test_global_average_pool(shape):
    x = data(*shape)
    expected = x.mean(axis=(2, 3), keepdims=True)
    check(lambda a: op.mean(a, [2, 3], keepdims=True), expected, x)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "prod"])
def test_reduction(name, axes):
    x = data(5, 19, 37) if name != "prod" else 1 + 0.01 * data(5, 19, 37)
    expected = getattr(x, name)(axis=tuple(axes))
    check(lambda a: getattr(op, name)(a, axes), expected, x, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 2, 80, 80, LANES), [2, 3]),
        ((1, 1, 3, 2500, 24), [2, 3]),
        ((7001, 40), [0]),
        ((2, 300, 301), [1, 2]),
        ((90000,), [0]),
        ((2, 16, 19, 23, 5), [1, 2, 3]),
    ],
)
def test_a_long_sum_is_as_exact_as_sums_of_a_few_hundred(shape, axes):
    # All roundings of a constant go the same way: one after the other, 2e-5 to 7e-4 are lost.
    x = np.full(shape, 0.3, "float32")
    expected = x.mean(tuple(axes), dtype="float64")
    check(lambda a: op.mean(a, axes), expected, x, rtol=8e-6, atol=0)
    scattered = x + data(*shape)
    expected = scattered.mean(tuple(axes), dtype="float64")
    check(lambda a: op.mean(a, axes), expected, scattered, rtol=0, atol=1e-6)


def test_a_long_sum_of_integers_is_one_sum():
    x = RNG.integers(-9, 9, (400, 8), dtype="int32")
    (kernel,) = check(lambda a: op.sum(a, [0]), x.sum(axis=0), x)
    assert len(loops(kernel, tirx.ForKind.SERIAL)) == 1


@pytest.mark.parametrize("shape", [(1, 1000), (3, 17), (2, 10, 7, 9), (700, 129)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(shape, axis):
    x = data(*shape)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    expected = e / e.sum(axis=axis, keepdims=True)
    check(lambda a: op.nn.softmax(a, axis), expected, x)
    check(lambda a: op.nn.log_softmax(a, axis), np.log(expected), x, rtol=1e-5, atol=1e-5)


def test_large_softmax_is_one_parallel_loop():
    x = data(2, 12, 64, 100)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    (kernel,) = check(lambda a: op.nn.softmax(a, -1), e / e.sum(axis=-1, keepdims=True), x)
    assert len(loops(kernel, tirx.ForKind.PARALLEL)) == 1


def test_an_output_read_by_a_later_stage():
    """Both tensors are results: the sums must be complete before they are subtracted."""
    x = data(64, 3000)

    def function(a):
        total = op.sum(a, [0], keepdims=True)
        return relax.Tuple([total, op.subtract(a, total)])

    module = scheduled(graph(function, x.shape))
    machine = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
    total, rest = (t.numpy() for t in machine["main"](tvm.runtime.tensor(x)))
    expected = x.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(rest, x - expected, rtol=1e-5, atol=1e-4)


def test_batch_norm():
    x, c = data(1, 10, 6, 7), [data(10), data(10), data(10), np.abs(data(10)) + 1]
    a, b, m, v = (p.reshape(1, 10, 1, 1) for p in c)
    expected = a * (x - m) / np.sqrt(v + 1e-5) + b
    check(
        lambda *p: relax.TupleGetItem(op.nn.batch_norm(*p, axis=1, training=False), 0),
        expected,
        x,
        *c,
        rtol=1e-5,
        atol=1e-5,
    )


def test_layer_norm():
    x, g, b = data(3, 11, 70), data(70), data(70)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-5) * g + b
    module = scheduled(graph(lambda *p: op.nn.layer_norm(*p, axes=[-1]), x.shape, g.shape, b.shape))
    np.testing.assert_allclose(run(module, x, g, b), expected, rtol=1e-4, atol=1e-4)


def test_local_response_normalisation():
    """GoogLeNet's LRN as the ONNX importer spells it: square, pad, window sum, power, divide."""
    x, size, alpha, beta, bias = data(1, 12, 9, 7), 5, 1e-2, 0.75, 1.0

    def lrn(a):
        square = op.expand_dims(op.multiply(a, a), 1)
        padded = op.nn.pad(square, (0, 0, 0, 0, 2, 2, 0, 0, 0, 0))
        mean = op.nn.avg_pool3d(padded, (size, 1, 1), (1, 1, 1))
        scaled = op.add(op.multiply(op.squeeze(mean, [1]), relax.const(alpha)), relax.const(bias))
        return op.divide(a, op.power(scaled, relax.const(beta)))

    square = np.pad(x * x, ((0, 0), (2, 2), (0, 0), (0, 0)))
    mean = sum(square[:, i : i + 12] for i in range(size)) / size
    check(lrn, x / (bias + alpha * mean) ** beta, x, rtol=1e-5)


@pytest.mark.parametrize("m,n,k", [(1, 10, 7), (37, 70, 45), (5, 1, 33), (1, 1, 1), (16, 16, 16)])
def test_small_matmul(m, n, k):
    x, w = data(2, m, k), data(k, n)
    check(op.matmul, x @ w, x, w, rtol=1e-5, atol=1e-5)
    check(lambda a, b: op.matmul(a, op.permute_dims(b)), x @ w, x, w.T.copy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "exp", "silu", "gelu"])
def test_activation(name):
    x = data(1, 5, 7, 9)
    wide = x.astype("float64")
    sigmoid = 1 / (1 + np.exp(-wide))
    if name == "gelu":
        expected = np.vectorize(lambda v: v * 0.5 * (1 + math.erf(v / 2**0.5)))(wide)
    else:
        expected = {
            "sigmoid": sigmoid,
            "tanh": np.tanh(wide),
            "exp": np.exp(wide),
            "silu": wide * sigmoid,
        }[name]
    function = getattr(op.nn, name) if name in ("silu", "gelu") else getattr(op, name)
    check(function, expected, x)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "int8", "uint8", "float16"])
def test_other_data_types(dtype):
    x, y = (RNG.integers(0, 50, (3, 5, 37)).astype(dtype) for _ in range(2))
    check(op.add, x + y, x, y)
    check(lambda a: op.max(a, [2]), x.max(axis=2), x)


def test_comparison_choice_and_cast():
    x, y = data(3, 5, 37), data(3, 5, 37)
    check(op.less, x < y, x, y)
    check(lambda a, b: op.where(op.greater(a, b), a, op.negative(b)), np.where(x > y, x, -y), x, y)
    check(lambda a: op.astype(a, "int32"), x.astype("int32"), x)
    check(lambda a: op.clip(a, -0.5, 0.5), x.clip(-0.5, 0.5), x)


def test_convolution_without_a_template():
    x, w = data(1, 5, 9, 11), data(7, 5, 3, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, w)
    check(lambda a, b: op.nn.conv2d(a, b, padding=(1, 1)), expected, x, w, rtol=1e-4, atol=1e-4)
    expected = np.zeros((1, 5, 11, 13), "float32")
    for i in range(3):
        for j in range(3):
            expected[..., i : i + 9, j : j + 11] += np.einsum("nchw,co->nohw", x, w[:5, :, i, j])
    v = w[:5].copy()
    check(op.nn.conv2d_transpose, expected, x, v, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["std", "variance"])
def test_two_pass_reductions(name):
    x = data(6, 200)
    expected = x.std(axis=1) if name == "std" else x.var(axis=1)
    check(lambda a: getattr(op, name)(a, [1]), expected, x, rtol=1e-5, atol=1e-5)


def test_scalars_and_empty_loops():
    x = np.array(3.0, "float32")
    check(lambda a: op.add(a, a), x + x, x)
    check(lambda a: op.sum(a), data(1).sum() * 0 + 3, np.array([3.0], "float32"))


@T.prim_func(s_tir=True)
def sum_from_five(x: T.Buffer((6, 200), "float32"), total: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 200):
        with T.sblock("total"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                total[vi] = T.float32(5)
            total[vi] = total[vi] + x[vi, vk]


def test_a_sum_that_starts_elsewhere_counts_its_start_once():
    sch = DefaultCPU().apply(sum_from_five.with_attr("global_symbol", "main"), TARGET, False)
    assert sch.mod["main"].attrs[DEFAULT_RULE] == "reduction"
    values, result = data(6, 200), tvm.runtime.tensor(np.empty(6, "float32"))
    tvm.compile(sch.mod, TARGET)["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), 5 + values.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_analysed_says_why():
    x = data(4, 9)
    module = scheduled(graph(lambda a: op.argmax(a, axis=1), x.shape))
    (kernel,) = kernels(module)
    assert str(kernel.attrs[DEFAULT_RULE]).startswith("unscheduled: ")
    np.testing.assert_array_equal(run(module, x), x.argmax(1))


@pytest.mark.parametrize(
    "fields,register",
    [
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "q"),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, "%ymm"),
        (
            {"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]},
            "%zmm",
        ),
    ],
)
def test_vector_width_follows_the_target(fields, register):
    target = tvm.target.Target({"kind": "llvm", "num-cores": 4, **fields})
    x = te.placeholder((64, 1000), "float32", name="x")
    func = te.create_prim_func([x, te.compute(x.shape, lambda *i: x[i] + x[i], name="y")])
    sch = DefaultCPU().apply(func, target, False)
    assembly = tvm.compile(sch.mod, target).mod.inspect_source("asm")
    assert re.search(r"fadd\s+v\d+\.4s" if register == "q" else f"vaddps.*{register}", assembly)
    lanes = {"q": 4, "%ymm": 8, "%zmm": 16}[register]
    assert lanes in vector_lengths(sch.mod["main"])


def test_a_mistake_of_the_rule_comes_out(monkeypatch):
    def mistaken(*_):
        raise TypeError("a mistake")

    monkeypatch.setattr(rule, "shape_stages", mistaken)
    func = sum_from_five.with_attr("global_symbol", "main")
    with pytest.raises(TypeError, match="a mistake"):
        DefaultCPU().apply(func, TARGET, False)


def test_what_a_schedule_refuses_says_why(monkeypatch):
    def refused(sch, *_):
        sch.get_sblock("nowhere")

    monkeypatch.setattr(rule, "shape_stages", refused)
    sch = DefaultCPU().apply(sum_from_five.with_attr("global_symbol", "main"), TARGET, False)
    assert "nowhere" in sch.mod["main"].attrs[DEFAULT_RULE]
    assert loops(sch.mod["main"], tirx.ForKind.PARALLEL)
