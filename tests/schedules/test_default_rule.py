"""The default CPU rule: results against numpy, structure of the loops, random shapes."""

import math
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.s_tir.dlight import ApplyDefaultSchedule
from tvm.script import tirx as T

from tvm_blislike.schedules.default_rule import ATTRIBUTE, DefaultCPU, Machine

RNG = np.random.default_rng(7)


def native_target():
    """LLVM target with the vector width that this machine runs."""
    host = tvm.target.Target("llvm")
    fields = {"kind": "llvm", "mtriple": str(host.attrs["mtriple"]), "num-cores": 2}
    if "x86_64" not in fields["mtriple"]:
        return tvm.target.Target(fields)
    with open("/proc/cpuinfo") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split())
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"} <= flags:
        return tvm.target.Target({**fields, "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]})
    level = "x86-64-v3" if {"avx2", "fma"} <= flags else "x86-64-v2"
    return tvm.target.Target({**fields, "mcpu": level})


TARGET = native_target()
LANES = Machine.of(TARGET).vector_bits // 32


def graph(function, *shapes, dtypes=None):
    """Build a Relax module with one dataflow block around `function`."""
    builder = relax.BlockBuilder()
    dtypes = dtypes or ["float32"] * len(shapes)
    variables = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(function(*variables)))
        builder.emit_func_output(result)
    return builder.get()


def scheduled(module):
    """Legalize, fuse and apply the rule, as the pipeline does."""
    passes = relax.transform
    with TARGET:
        return tvm.transform.Sequential(
            [
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.FuseOps(),
                passes.FuseTIR(),
                passes.DeadCodeElimination(),
                ApplyDefaultSchedule(DefaultCPU()),
            ]
        )(module)


def kernels(module):
    return [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]


def run(module, *arrays):
    machine = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def check(function, expected, *arrays, rtol=1e-6, atol=1e-6):
    """Compile `function` through the rule and compare with numpy; return the kernels."""
    shapes, dtypes = [a.shape for a in arrays], [str(a.dtype) for a in arrays]
    module = scheduled(graph(function, *shapes, dtypes=dtypes))
    np.testing.assert_allclose(run(module, *arrays), expected, rtol=rtol, atol=atol)
    for kernel in kernels(module):
        assert not str(kernel.attrs[ATTRIBUTE]).startswith("unscheduled")
    return kernels(module)


def data(*shape):
    return RNG.standard_normal(shape).astype("float32")


def loops(kernel, kind):
    found = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, lambda x: found.append(x) or 0), order="pre")
    return [x for x in found if x.kind == kind]


def vector_lengths(kernel):
    return {int(x.extent) for x in loops(kernel, tirx.ForKind.VECTORIZED)}


def pool(x, kernel, stride, padding, how):
    """Pool the axes 2 and 3 of `x`; padding (top, left, bottom, right) is not counted."""
    top, left, bottom, right = padding
    width = [(0, 0), (0, 0), (top, bottom), (left, right)] + [(0, 0)] * (x.ndim - 4)
    padded = np.pad(x, width, constant_values=np.nan)
    oh = (padded.shape[2] - kernel[0]) // stride[0] + 1
    ow = (padded.shape[3] - kernel[1]) // stride[1] + 1
    rows = []
    for i in range(oh):
        row = []
        for j in range(ow):
            h, w = i * stride[0], j * stride[1]
            row.append(how(padded[:, :, h : h + kernel[0], w : w + kernel[1]], axis=(2, 3)))
        rows.append(np.stack(row, axis=2))
    return np.stack(rows, axis=2)


# -- families --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 13, 13), (2, 3, 7, 5), (1, 1), (1000,), (1, 17, 1, 1)])
def test_elementwise_chain(shape):
    x, y = data(*shape), data(*shape)
    check(lambda a, b: op.nn.relu(op.add(op.multiply(a, b), a)), np.maximum(x * y + x, 0), x, y)


def test_elementwise_chain_becomes_one_parallel_vector_loop():
    x = data(1, 64, 56, 57)
    (kernel,) = check(lambda a, b: op.nn.relu(op.add(a, b)), np.maximum(x + x, 0), x, x)
    assert len(loops(kernel, tirx.ForKind.PARALLEL)) == 1
    assert LANES in vector_lengths(kernel)


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


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_concat(axis):
    x, y = data(2, 3, 5, 7), data(2, 3, 5, 7)
    expected = np.concatenate([x, y, x], axis)
    check(lambda a, b: op.concat([a, b, a], axis), expected, x, y)


@pytest.mark.parametrize("width", [(0, 0, 0, 0, 1, 1, 1, 1), (0, 0, 1, 2, 0, 3, 2, 0)])
def test_pad(width):
    x = data(1, 5, 9, 21)
    expected = np.pad(x, np.reshape(width, (4, 2)))
    (kernel,) = check(lambda a: op.nn.pad(a, width), expected, x)
    assert vector_lengths(kernel)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_nearest_resize(layout):
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    x = data(1, 5, 6, 7)
    size = relax.ShapeExpr([2 * x.shape[a] for a in axes])
    expected = x.repeat(2, axes[0]).repeat(2, axes[1])
    check(
        lambda a: op.image.resize2d(
            a,
            size,
            layout=layout,
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        expected,
        x,
    )


def test_bilinear_resize():
    x = data(1, 3, 6, 8)
    position = np.clip((np.arange(16) + 0.5) / 2 - 0.5, 0, 7)
    low = np.floor(position).astype(int)
    high, part = np.minimum(low + 1, 7), (position - low).astype("float32")
    expected = x[..., low] * (1 - part) + x[..., high] * part
    size = relax.ShapeExpr([6, 16])
    check(lambda a: op.image.resize2d(a, size, method="linear"), expected, x, atol=1e-5)


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_transpose(axes):
    x = data(2, 33, 17, 20)
    check(lambda a: op.permute_dims(a, axes), x.transpose(axes), x)


@pytest.mark.parametrize("channels,block", [(32, 16), (3, 4), (24, 8), (20, 16), (57, 57), (3, 3)])
def test_block_and_unblock(channels, block):
    x = data(2, channels, 7, 9)
    blocks = -(-channels // block)
    padded = np.pad(x, ((0, 0), (0, blocks * block - channels), (0, 0), (0, 0)))
    blocked = padded.reshape(2, blocks, block, 7, 9).transpose(0, 1, 3, 4, 2).copy()
    pad_value = 0.0 if channels % block else None

    def pack(a):
        return op.layout_transform(
            a, lambda n, c, h, w: (n, c // block, h, w, c % block), pad_value=pad_value
        )

    check(pack, blocked, x)
    if channels % block == 0:
        check(
            lambda a: op.layout_transform(a, lambda n, c, h, w, b: (n, c * block + b, h, w)),
            x,
            blocked,
        )


def test_transposition_runs_in_registers():
    x = data(4 * LANES + 3, 2 * LANES + 1)
    (kernel,) = check(lambda a: op.nn.relu(op.permute_dims(a)), np.maximum(x.T, 0), x)
    assert kernel.attrs[ATTRIBUTE] == "transpose"
    assert "T.Shuffle" in kernel.script()


def test_transposition_into_an_intermediate_buffer():
    x = data(35, 50)
    e = np.exp(x - x.max(axis=0))
    check(lambda a: op.nn.softmax(op.permute_dims(a), -1), (e / e.sum(axis=0)).T, x)


def test_reshape_after_relu():
    x = data(2, 6, 5, 7)
    check(lambda a: op.reshape(op.nn.relu(a), (2, 210)), np.maximum(x, 0).reshape(2, 210), x)


def test_split_and_strided_slice():
    x = data(1, 12, 6, 9)
    check(lambda a: relax.TupleGetItem(op.split(a, 3, axis=1), 1), x[:, 4:8], x)
    check(lambda a: op.strided_slice(a, [3], [1], [9], [2]), x[..., 1:9:2], x)


def test_gather():
    x, index = data(50, 19), RNG.integers(0, 50, (3, 4))
    check(lambda a, i: op.take(a, i, axis=0), x[index], x, index)


def test_channel_shuffle():
    x = data(1, 12, 5, 7)

    def shuffle(a):
        groups = op.permute_dims(op.reshape(a, (1, 3, 4, 5, 7)), (0, 2, 1, 3, 4))
        return op.nn.relu(op.reshape(groups, (1, 12, 5, 7)))

    expected = x.reshape(1, 3, 4, 5, 7).transpose(0, 2, 1, 3, 4).reshape(x.shape)
    check(shuffle, np.maximum(expected, 0), x)


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
    assert sch.mod["main"].attrs[ATTRIBUTE] == "reduction"
    values, result = data(6, 200), tvm.runtime.tensor(np.empty(6, "float32"))
    tvm.compile(sch.mod, TARGET)["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), 5 + values.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_analysed_says_why():
    x = data(4, 9)
    module = scheduled(graph(lambda a: op.argmax(a, axis=1), x.shape))
    (kernel,) = kernels(module)
    assert str(kernel.attrs[ATTRIBUTE]).startswith("unscheduled: ")
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


# -- random shapes ---------------------------------------------------------------------------

EXTENT = st.sampled_from([1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33])
PROPERTY = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@PROPERTY
@given(shape=st.tuples(EXTENT, EXTENT, EXTENT), axis=st.integers(0, 2), keep=st.booleans())
def test_any_shape_reduces_and_broadcasts(shape, axis, keep):
    x = data(*shape)
    mean = x.mean(axis=axis, keepdims=True)
    check(
        lambda a: op.subtract(a, op.mean(a, [axis], keepdims=True)),
        x - mean,
        x,
        rtol=1e-5,
        atol=1e-5,
    )
    check(lambda a: op.max(a, [axis], keepdims=keep), x.max(axis=axis, keepdims=keep), x)


@PROPERTY
@given(shape=st.tuples(EXTENT, EXTENT, EXTENT, EXTENT), axes=st.permutations(range(4)), pad=EXTENT)
def test_any_shape_transposes_and_pads(shape, axes, pad):
    x = data(*(min(s, 17) for s in shape))
    check(lambda a: op.permute_dims(a, axes), x.transpose(axes), x)
    width = [(0, 0), (0, 0), (pad, 0), (1, pad)]
    flat = [side for both in width for side in both]
    check(lambda a: op.nn.pad(a, flat), np.pad(x, width), x)


@PROPERTY
@given(
    size=st.tuples(st.integers(3, 17), st.integers(3, 17)),
    block=st.sampled_from([1, 3, 8, 16]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
)
def test_any_pool(size, block, kernel, stride, padding):
    x = data(1, 2, *size, block)
    pads = (min(padding, kernel - 1),) * 4
    expected = pool(x, (kernel, kernel), (stride, stride), pads, np.nanmax)
    check(
        lambda a: op.nn.max_pool2d(
            a, (kernel, kernel), (stride, stride), pads, layout=f"NCHW{block}c"
        ),
        expected,
        x,
    )
