"""Depthwise convolution against numpy; its code: no condition, no spill, each pixel loaded once."""

import dataclasses
import re

import numpy as np
import pytest
import reference
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import ir, s_tir, te, tirx

from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.geometry import CODE_BYTES, DepthwiseGeometry
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.schedules.conv2d_depthwise.definition import IMPLEMENTATION
from tvm_blislike.schedules.lowering import lower as lowering
from tvm_blislike.schedules.lowering.rewrite import collect, constant

NATIVE = native_core()
LANES = NATIVE.lanes()
AVX512 = Core.named("sapphirerapids")
NEON = Core.named("cortex-a76")
SAME = (1, 1, 1, 1)


def layer(channels, size, kernel=3, multiplier=1, n=1, stride=(1, 1), padding=SAME, dilation=1):
    """Describe a depthwise layer with square image and kernel."""
    return Conv2dWorkload(
        n,
        channels,
        size,
        size,
        channels * multiplier,
        kernel,
        kernel,
        stride,
        padding,
        (dilation, dilation),
        channels,
    )


def lowered(workload, config, core, threads):
    """Lower the layer with bias, residual add and clip fused behind it."""
    data = te.placeholder(
        Layout(config.data_layout).shape(workload.n, workload.ci, workload.h, workload.w),
        name="data",
    )
    packed = te.placeholder(DepthwiseGeometry(workload, config).packed_shape, name="packed")
    conv = IMPLEMENTATION.compute(workload, config, data, packed)
    bias = te.placeholder(Layout(config.out_layout).shape(1, workload.co, 1, 1), name="bias")
    residual = te.placeholder(conv.shape, name="residual")

    def biased(*i):
        return conv(*i) + (bias[0, i[1], 0, 0, i[4]] if len(i) == 5 else bias[0, 0, 0, i[3]])

    with_bias = te.compute(conv.shape, biased, name="with_bias")
    added = te.compute(conv.shape, lambda *i: with_bias(*i) + residual(*i), name="added")
    clipped = te.compute(conv.shape, lambda *i: te.min(te.max(added(*i), 0.0), 6.0), name="clipped")
    func = te.create_prim_func([data, packed, bias, residual, clipped])
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True))
    IMPLEMENTATION.schedule(sch, workload, config, core, threads)
    register_bytes = core.vector_registers * core.vector_bits // 8
    ours = sch.mod["main"].with_attr(REGISTER_BYTES, register_bytes)
    return lowering.lower(tvm.IRModule({"main": ours}))


def in_layout(x, layout):
    if Layout(layout).block:
        return reference.pack_nchwc(x, Layout(layout).block)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def out_of_layout(x, layout, channels):
    return reference.unpack_nchwc(x, channels) if Layout(layout).block else x.transpose(0, 3, 1, 2)


def max_error(workload, config, threads=1, core=NATIVE):
    """Run the layer on random data; return the error relative to the largest output."""
    rng = np.random.default_rng(0)

    def random(*shape):
        return rng.standard_normal(shape, "float32")

    x = random(workload.n, workload.ci, workload.h, workload.w)
    weights = random(workload.co, 1, workload.kh, workload.kw)
    bias = random(1, workload.co, 1, 1)
    residual = random(workload.n, workload.co, workload.oh, workload.ow)
    mod = lowered(workload, config, core, threads)
    lib = tvm.compile(mod, tvm.target.Target(core.target_config(threads)))
    out = tvm.runtime.tensor(np.full_like(in_layout(residual, config.out_layout), np.nan))
    lib["main"](
        tvm.runtime.tensor(in_layout(x, config.data_layout)),
        tvm.runtime.tensor(IMPLEMENTATION.pack(workload, config, weights)),
        tvm.runtime.tensor(in_layout(bias, config.out_layout)),
        tvm.runtime.tensor(in_layout(residual, config.out_layout)),
        out,
    )
    conv = reference.conv2d(
        x,
        weights,
        bias.reshape(-1),
        workload.stride,
        workload.padding,
        workload.dilation,
        workload.groups,
    )
    expected = reference.clip(conv + residual, 0, 6)
    actual = out_of_layout(out.numpy(), config.out_layout, workload.co)
    return np.abs(actual - expected).max() / np.abs(expected).max()


def best(workload, threads=1, core=NATIVE):
    return IMPLEMENTATION.configs(workload, core, threads)[0]


def tiled(workload, tile_h, tile_w, order, core=NATIVE):
    """Return the best config with another tile and loop order."""
    tile = {"tile_h": min(tile_h, workload.oh), "tile_w": min(tile_w, workload.ow)}
    mr = tile["tile_h"] * tile["tile_w"]
    return best(workload, core=core).with_fields(mr=mr, loop_order=order, **tile)


LAYERS = [
    layer(2 * LANES, 14),
    layer(2 * LANES, 15, stride=(2, 2)),
    layer(LANES, 7, n=3),
    layer(3 * LANES, 1),
    layer(LANES, 13, kernel=5, padding=(2, 2, 2, 2)),
    layer(LANES, 11, stride=(2, 1), padding=(0, 1, 2, 0)),
    layer(LANES, 9, kernel=2, padding=(0, 0, 0, 0), dilation=3),
    layer(LANES, 9, kernel=1, padding=(0, 0, 0, 0)),
    layer(LANES, 7, kernel=7, padding=(0, 0, 0, 0)),
    layer(LANES, 5, padding=(4, 3, 5, 4)),
    layer(24, 10, n=2),
    layer(57, 8),
    layer(3, 8),
    layer(LANES - 1, 6, stride=(3, 3)),
]
MULTIPLIERS = [
    layer(LANES, 6, multiplier=2),
    layer(LANES, 6, multiplier=3),
    layer(2 * LANES, 6, multiplier=4),
    layer(LANES, 6, multiplier=LANES),
    layer(3, 6, multiplier=2 * LANES),
    layer(LANES // 2, 6, multiplier=2),
    layer(5, 6, multiplier=2),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("workload", LAYERS + MULTIPLIERS, ids=str)
def test_agrees_with_reference(workload, threads):
    assert max_error(workload, best(workload, threads), threads) <= 1e-6


@pytest.mark.parametrize("order", ["channels", "rows"])
@pytest.mark.parametrize("tile", [(1, 1), (1, 5), (2, 4), (3, 5), (4, 2)])
@pytest.mark.parametrize("channels", [2 * LANES, LANES + LANES // 2 + 1])
def test_every_tile_and_order(channels, tile, order):
    workload = layer(channels, 11, stride=(1, 2), padding=(1, 0, 2, 1))
    assert max_error(workload, tiled(workload, *tile, order), threads=2) <= 1e-6


@st.composite
def random_layers(draw):
    small = st.integers(0, 3)
    channels = draw(st.sampled_from([2, LANES - 1, LANES, LANES + 1, 2 * LANES]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    padding = draw(st.tuples(small, small, small, small))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    h = draw(st.integers(max(1, reach[0] - padding[0] - padding[2]), 17))
    w = draw(st.integers(max(1, reach[1] - padding[1] - padding[3]), 17))
    return Conv2dWorkload(
        draw(st.integers(1, 3)),
        channels,
        h,
        w,
        channels * draw(st.sampled_from([1, 1, 2, 3])),
        *kernel,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding,
        dilation,
        channels,
    )


@settings(max_examples=20, deadline=None)
@given(random_layers(), st.integers(1, 3), st.integers(1, 6), st.sampled_from(["channels", "rows"]))
def test_random_layers(workload, tile_h, tile_w, order):
    config = tiled(workload, tile_h, tile_w, order)
    assert max_error(workload, config, threads=2) <= 2e-6


@pytest.mark.skipif(NATIVE.isa.name not in ("avx2", "avx512"), reason="runs AVX2 code")
@pytest.mark.parametrize("workload", [layer(24, 13), layer(13, 9, stride=(2, 2))], ids=str)
def test_avx2(workload):
    haswell = Core.named("haswell")
    assert max_error(workload, best(workload, core=haswell), core=haswell) <= 1e-6


def test_large_dilation_pads_first():
    workload = layer(LANES, 30, padding=(12, 12, 12, 12), dilation=12)
    config = tiled(workload, 1, 2, "channels")
    assert DepthwiseGeometry(workload, config).copies
    assert IMPLEMENTATION.workspace_bytes(workload, config, 1) == 4 * LANES * 54 * 54
    assert max_error(workload, config, threads=2) <= 1e-6


MOBILENET = [
    layer(32, 112),
    layer(64, 112, stride=(2, 2)),
    layer(144, 56, stride=(2, 2)),
    layer(256, 28),
    layer(512, 14),
    layer(960, 7),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("workload", MOBILENET, ids=str)
def test_no_copy_and_no_condition(workload, threads):
    config = best(workload, threads, AVX512)
    assert IMPLEMENTATION.workspace_bytes(workload, config, threads) == 0
    assert DepthwiseGeometry(workload, config).code_bytes <= CODE_BYTES
    text = lowered(workload, config, AVX512, threads)["main"].script()
    assert "if_then_else" not in text
    # Only whole rows of tiles may be told apart, where they run in parallel.
    assert config.loop_order == "rows" or not re.search(r"\bif\b", text)


def kernel_rows(body, kw):
    """Return which row of the kernel each product takes: a number, or the variable of a loop."""
    loaded = {bind.var: bind.value.args[0] for bind in collect(body, tirx.Bind) if is_address(bind)}
    first = {view.buffer: loaded[view.data] for view in collect(body, tirx.DeclBuffer)}
    rows = []
    for product in collect(body, tirx.Mul):
        if isinstance(product.b, ir.TensorLoad) and product.b.source.name == "packed":
            # packed[vector, row, column, lane], and what is loaded at a constant behind it
            _vector, row, column, lane = first[product.b.source].indices
            offset = int(column) * LANES + int(lane) + int(product.b.indices[0].base)
            rows.append(row if constant(row) is None else int(row) + offset // (kw * LANES))
            assert constant(row) is not None or offset < kw * LANES
    return rows


def is_address(bind):
    return isinstance(bind.value, ir.Call) and bind.value.op.name == "tirx.address_of"


@pytest.mark.parametrize("tile_h", [1, 2])
@pytest.mark.parametrize("order", ["channels", "rows"])
def test_border_rows_share_the_code_of_one_row_of_the_kernel(order, tile_h):
    workload = layer(2 * LANES, 28, kernel=5, padding=(2, 2, 2, 2))
    config = tiled(workload, tile_h, 4, order).with_fields(ks=1)
    geo = DepthwiseGeometry(workload, config)
    assert geo.shares_border == (tile_h == 1)
    main = lowered(workload, config, NATIVE, 2)["main"]
    assert "if_then_else" not in main.script()
    rows = kernel_rows(main.body, kw=5)
    copies = [rows.count(number) for number in range(5)]
    if tile_h == 1:
        of_border = [row for row in rows if not isinstance(row, int)]
        assert copies == [len(of_border)] * 5 and of_border
    else:
        assert sum(copies) == len(rows)
    assert max_error(workload, config, 2) <= 1e-6


def loop_body(assembly):
    """Return the instructions of the innermost loop with the most FMAs."""
    blocks, label = {}, ""
    for line in map(str.strip, assembly.splitlines()):
        if found := re.match(r"(\.LBB\w+):", line):
            label = found[1]
        elif line and not line.startswith((".", "#", "/")):
            blocks.setdefault(label, []).append(line)
    loops = [
        body
        for label, body in blocks.items()
        if any(re.match(rf"(j|b)\S*\s+{re.escape(label)}\b", x) for x in body)
    ]
    return max(loops, key=lambda body: sum(is_fma(x) for x in body))


def is_fma(instruction):
    return re.match(r"vfmadd\d+ps|fmla", instruction) is not None


def assembly_of(workload, config, core):
    target = tvm.target.Target(core.target_config(1))
    return tvm.compile(lowered(workload, config, core, 1), target).mod.inspect_source("asm")


def vector_loads(body):
    """Count vectors read from memory, as operands of arithmetic too."""
    x86 = [x for x in body if "%zmm" in x and "(" in x and not re.search(r"%zmm\d+, \S*\(", x)]
    return len(x86) + sum({"ldr q": 1, "ldp q": 2, "ldur ": 1}.get(neon(x), 0) for x in body)


def neon(instruction):
    return re.sub(r"\s+", " ", instruction)[:5]


@pytest.mark.parametrize("core", [AVX512, NEON], ids=lambda core: core.isa.name)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tile", [(2, 5), (2, 4), (1, 8)])
def test_interior_loop(tile, stride, core):
    """One FMA per product, one load per pixel of the window, nothing on the stack."""
    size = stride * (4 * tile[0] * tile[1] - 1) + 3
    workload = layer(4 * core.lanes(), size, stride=(stride, stride), padding=(0, 0, 0, 0))
    body = loop_body(assembly_of(workload, tiled(workload, *tile, "channels", core), core))
    outputs = tile[0] * tile[1]
    assert sum(is_fma(x) for x in body) == 9 * outputs
    window = depthwise.window_loads(workload, *tile)
    # Beside the window: the residual of each output, the bias, the bounds of the clip.
    assert window + outputs <= vector_loads(body) <= window + outputs + 3
    assert not [x for x in body if re.search(r"%[xyz]mm.*\(%rsp|\bq\d+.*\[sp", x)]


@pytest.mark.parametrize("multiplier", [2, 8, 32])
def test_multiplier_is_no_gather(multiplier):
    workload = layer(32, 20, multiplier=multiplier)
    config = tiled(workload, 2, 5, "channels", AVX512)
    body = loop_body(assembly_of(workload, config, AVX512))
    assert not [x for x in body if x.startswith(("vinsertps", "vpinsr", "vunpcklps"))]


def test_tile_of_large_channel_counts_reads_each_pixel_once():
    workload = layer(64, 56)
    assert depthwise.window_loads(workload, 2, 7) == 4 * 9
    assert depthwise.window_loads(layer(64, 56, stride=(2, 2)), 2, 7) == 5 * 15
    # A stride beyond the kernel skips pixels.
    assert depthwise.window_loads(layer(64, 56, stride=(4, 4)), 2, 2) == 6 * 6
    assert depthwise.loads_per_fma(workload, 2, 7, AVX512) == 36 / 126
    assert depthwise.loads_per_fma(workload, 2, 7, AVX512) == 36 / 126


@pytest.mark.parametrize("core", [AVX512, NEON, Core.named("haswell")], ids=lambda c: c.name)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("workload", LAYERS + MULTIPLIERS + MOBILENET, ids=str)
def test_configs_and_estimates(workload, threads, core):
    configs = IMPLEMENTATION.configs(workload, core, threads)
    assert configs and len(set(configs)) == len(configs)
    lanes = core.lanes()
    for config in configs:
        assert config.tile_h * config.tile_w <= depthwise.accumulators(workload, core)
        assert config.data_layout == Layout.preferred(workload.ci, 1, lanes)
        assert config.out_layout == Layout.preferred(workload.co, 1, lanes)
        estimate = IMPLEMENTATION.estimate(workload, config, core, threads)
        assert estimate.seconds > 0
        assert 0 < estimate.peak_fraction <= 1
        assert all(cycles >= 0 for cycles in estimate.cycles.values())
    times = [IMPLEMENTATION.estimate(workload, c, core, threads).seconds for c in configs]
    assert times == sorted(times)


def test_estimate_follows_the_caches():
    """A layer that L2 holds runs nearer to the peak than one that streams from further away."""
    near, far = layer(512, 14), layer(32, 224)

    def fraction(workload):
        config = best(workload, core=AVX512)
        return IMPLEMENTATION.estimate(workload, config, AVX512, 1).peak_fraction

    assert fraction(near) > 1.5 * fraction(far)


def test_applies():
    assert isinstance(IMPLEMENTATION, Implementation)
    assert IMPLEMENTATION.applies(layer(32, 14), NATIVE) == ""
    dense = Conv2dWorkload(1, 32, 14, 14, 32, 3, 3)
    assert "depthwise" in IMPLEMENTATION.applies(dense, NATIVE)
    assert "gemm" in IMPLEMENTATION.applies(GemmWorkload(1, 1, 1), NATIVE)
    assert "too large" in IMPLEMENTATION.applies(layer(32, 99, kernel=99), NATIVE)
    half = Conv2dWorkload(1, 8, 9, 9, 8, 3, 3, groups=8, types=Types.of("float16"))
    older = Core.named("cortex-a72")
    assert IMPLEMENTATION.applies(half, older) == "cortex-a72 has no float16 arithmetic"
    assert IMPLEMENTATION.applies(half, Core.named("cortex-a76")) == ""
    long = layer(32, 40, kernel=17, padding=(0, 0, 0, 0))
    long = dataclasses.replace(long, types=Types.of("float16"))
    assert "too long a sum" in IMPLEMENTATION.applies(long, Core.named("cortex-a76"))


def test_pack_te_agrees_with_pack():
    workload = layer(24, 5, kernel=2, padding=(0, 0, 0, 0))
    config = best(workload)
    assert isinstance(config, Config)
    weights = np.random.default_rng(0).standard_normal((24, 1, 2, 2), "float32")
    operand = te.placeholder(weights.shape, name="weights")
    func = te.create_prim_func([operand, IMPLEMENTATION.pack_te(workload, config, operand)])
    lib = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    packed = IMPLEMENTATION.pack(workload, config, weights)
    out = tvm.runtime.tensor(np.full_like(packed, np.nan))
    lib["main"](tvm.runtime.tensor(weights), out)
    np.testing.assert_array_equal(out.numpy(), packed)
