"""Depthwise and 1x1 convolutions as one kernel, against NumPy and against two kernels."""

import dataclasses
import math

import numpy as np
import pytest
import reference
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx

from tvm_blislike.choose.constraints import Constraints, Pin, parse_pin
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import DepthwiseGeometry
from tvm_blislike.cost_models.slabs.config import NAME
from tvm_blislike.cost_models.slabs.geometry import slabs_of
from tvm_blislike.errors import ChoiceError, UsageError
from tvm_blislike.hardware import native_core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.passes import slabs
from tvm_blislike.pipeline import compile_module
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.schedules.slabs.kernel import kernel

CORE = native_core()
ACTIVATIONS = {
    "none": (lambda x: x, lambda x: x),
    "relu": (relax.op.nn.relu, reference.relu),
    "relu6": (lambda x: relax.op.clip(x, 0, 6), lambda x: reference.clip(x, 0, 6)),
    "silu": (relax.op.nn.silu, reference.silu),
    "hard_swish": (
        lambda x: relax.op.multiply(
            x,
            relax.op.clip(
                relax.op.add(
                    relax.op.multiply(x, relax.const(1 / 6, "float32")),
                    relax.const(0.5, "float32"),
                ),
                0,
                1,
            ),
        ),
        reference.hard_swish,
    ),
}


def layers(n=1, ci=32, co=48, h=14, w=14, kernel=3, stride=1, padding=None, read_twice=False):
    """Return the shapes of a pair: image, weights and biases of both layers, strides, padding."""
    pads = (kernel // 2,) * 4 if padding is None else padding
    return {
        "depthwise": Conv2dWorkload(
            n, ci, h, w, ci, kernel, kernel, (stride, stride), pads, groups=ci
        ),
        "co": co,
        "read_twice": read_twice,
    }


def module_of(case, activation, residual, rng):
    """Return the Relax module of a pair, its inputs and its expected results."""
    w, co = case["depthwise"], case["co"]
    x = rng.standard_normal(w.images[0], dtype=np.float32)
    given = [x]
    result = (w.n, co, w.oh, w.ow)
    if residual:
        given.append(rng.standard_normal(result, dtype=np.float32))
    wd = rng.standard_normal((w.ci, 1, w.kh, w.kw), dtype=np.float32) / w.kh
    bd = rng.standard_normal((1, w.ci, 1, 1), dtype=np.float32)
    wp = rng.standard_normal((co, w.ci, 1, 1), dtype=np.float32) / np.float32(math.sqrt(w.ci))
    bp = rng.standard_normal((1, co, 1, 1), dtype=np.float32)
    op, function = ACTIVATIONS[activation]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(given)]
    with builder.function("main", params):
        with builder.dataflow():
            made = relax.op.nn.conv2d(
                params[0], relax.const(wd), strides=w.stride, padding=w.padding, groups=w.ci
            )
            made = builder.emit(op(builder.emit(relax.op.add(builder.emit(made), relax.const(bd)))))
            out = builder.emit(relax.op.nn.conv2d(made, relax.const(wp)))
            out = builder.emit(relax.op.add(out, relax.const(bp)))
            if residual:
                out = builder.emit(relax.op.add(out, params[1]))
            outputs = [out, made] if case["read_twice"] else [out]
            out = builder.emit_output(outputs if len(outputs) > 1 else out)
        builder.emit_func_output(out)
    middle = reference.conv2d(x, wd, None, w.stride, w.padding, w.dilation, w.ci) + bd
    middle = np.asarray(function(middle), np.float32)
    expected = reference.conv2d(middle, wp, None, (1, 1), (0,) * 4, (1, 1), 1) + bp
    return builder.get(), given, expected + (given[1] if residual else 0)


def compiled(mod, threads=1, **limits):
    """Return the virtual machine and the report."""
    strategy = Strategy(CORE, threads, constraints=Constraints(**limits))
    run, report = compile_module(mod, strategy)
    return relax.VirtualMachine(run, tvm.cpu()), report


def pinned(rows):
    """Constraints that compute all pairs in slabs of so many rows."""
    only = ("conv2d_direct", "conv2d_depthwise", NAME)
    return {"pins": (Pin("conv *, 1x1*", NAME, (("rows", rows),)),), "only": only}


def copies_image(workload, report):
    """Whether the depthwise layer is a kernel of its own that makes a padded copy first."""
    alone = [la.config for la in report.layers if la.implementation == "conv2d_depthwise"]
    # Reports leave out fields that are 0 or empty.
    blank = {f.name: "" if f.type == "str" else 0 for f in dataclasses.fields(DepthwiseConfig)}
    return any(
        DepthwiseGeometry(workload, DepthwiseConfig(**{**blank, **config})).copies
        for config in alone
    )


def check(case, activation, residual, rows, threads, seed=0):
    mod, given, expected = module_of(case, activation, residual, np.random.default_rng(seed))
    machine, report = compiled(mod, threads, **pinned(rows))
    assert NAME in {layer.implementation for layer in report.layers} or copies_image(
        case["depthwise"], report
    )
    actual = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
    assert np.abs(actual - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_a_residual(activation, threads):
    check(layers(), activation, True, 3, threads)


@pytest.mark.parametrize("rows, products", [(7, 1), (2, 1), (3, 2), (14, 1)])
def test_slabs_of_equal_rows_share_the_product(rows, products, monkeypatch):
    seen = []

    def counted(first, second, parts, rows, threads):
        func, below = kernel(first, second, parts, rows, threads), {p.pointwise for p in parts}
        assert len(below) == products
        assert stores(func) == sum(map(stores, [*(p.depthwise for p in parts), *below]))
        seen.append(len(parts))
        return func

    monkeypatch.setattr(slabs, "kernel", counted)
    check(layers(), "relu", True, rows, 2)
    assert seen == [len(slabs_of(layers()["depthwise"], rows))]


def stores(func):
    """How many stores the code of a function has."""
    return len(collect(func.body, tirx.BufferStore))


@pytest.mark.parametrize("ci, co", [(32, 24), (24, 32), (40, 20), (7, 5)])
def test_layouts_of_any_channels(ci, co):
    check(layers(ci=ci, co=co, h=9, w=11), "relu6", True, 2, 2)


def test_images_of_a_batch():
    check(layers(n=3, h=7, w=7), "relu", True, 3, 2)


def test_a_padded_copy_of_the_image_keeps_two_kernels():
    # Borders of 11x11 split off would take too much code, whatever the tile of the core's choice.
    case = layers(n=2, ci=24, co=3, h=17, w=12, kernel=11, padding=(5, 5, 5, 2))
    mod, given, expected = module_of(case, "silu", False, np.random.default_rng(0))
    machine, report = compiled(mod, 2, **pinned(15))
    assert copies_image(case["depthwise"], report)
    actual = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
    assert np.abs(actual - expected).max() <= 2e-5 * np.abs(expected).max()


@examples(12)
@given(st.data())
def test_any_pair(data):
    draw = data.draw
    kernel, stride = draw(st.sampled_from([3, 5, 7])), draw(st.integers(1, 2))
    padding = tuple(draw(st.integers(0, kernel // 2)) for _ in range(4))
    size = [draw(st.integers(kernel + 1, 19)) for _ in range(2)]
    case = layers(
        draw(st.integers(1, 2)),
        draw(st.sampled_from([8, 16, 24, 48])),
        draw(st.sampled_from([3, 16, 40])),
        *size,
        kernel,
        stride,
        padding,
    )
    rows = draw(st.integers(1, case["depthwise"].oh))
    if case["depthwise"].oh == 1:
        return
    residual, threads = draw(st.booleans()), draw(st.integers(1, 3))
    check(case, draw(st.sampled_from(sorted(ACTIVATIONS))), residual, rows, threads)


@given(
    st.integers(1, 40), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)
)
def test_slabs_are_the_whole(height, kernel, stride, above, below):
    above, below = min(above, kernel - 1), min(below, kernel - 1)
    if height + above + below < kernel:
        return
    w = Conv2dWorkload(
        1, 16, height, 8, 16, kernel, 1, (stride, 1), (above, 0, below, 0), groups=16
    )
    for rows in range(1, w.oh + 1):
        runs = slabs_of(w, rows)
        assert sum(run.count * run.rows for run in runs) == w.oh
        for run in runs:
            slab = run.depthwise(w)
            assert slab.oh == run.rows and slab.ow == w.ow
            for number in (run.first, run.last):
                first = number * rows * stride - above + run.above
                assert 0 <= first and first + slab.h <= height


def kinds(mod, **limits):
    return [layer.implementation for layer in compiled(mod, **limits)[1].layers]


def test_the_choice_can_be_forbidden_and_is_left_out_in_small_images():
    # 64 channels of 112x112: neither image stays in L2.
    large = module_of(layers(ci=64, h=112, w=112), "relu", False, np.random.default_rng(0))[0]
    small = module_of(layers(), "relu", False, np.random.default_rng(0))[0]
    if (CORE.cache(2) or CORE.cache(1)).bytes < 6_000_000:
        assert NAME in kinds(large)
    assert NAME not in kinds(large, without=(NAME,))
    assert NAME not in kinds(large, only=("conv2d_direct", "conv2d_depthwise"))
    assert NAME not in kinds(small)


def test_a_result_that_others_read_stays():
    mod = module_of(layers(read_twice=True), "relu", False, np.random.default_rng(0))[0]
    assert NAME not in kinds(mod, **pinned(2))


def test_the_report_shows_one_kernel():
    mod = module_of(layers(), "relu", False, np.random.default_rng(0))[0]
    (found,) = (x for x in compiled(mod, **pinned(4))[1].layers if x.implementation == NAME)
    assert found.workload == "conv 1x32x14x14 3x3 -> 32 p1,1,1,1 g32, 1x1 -> 48"
    assert found.config["rows"] == 4 and found.reason == "pinned"
    assert found.macs == 14 * 14 * 32 * (9 + 48)
    assert {c.implementation for c in found.candidates} == {NAME, "two kernels"}


def test_pins_are_checked():
    pin = parse_pin(f"conv *, 1x1*={NAME},rows=5")
    assert pin.fields == (("rows", 5),)
    mod = module_of(layers(), "relu", False, np.random.default_rng(0))[0]
    with pytest.raises(ChoiceError, match="at most rows=14"):
        kinds(mod, **pinned(15))
    with pytest.raises(UsageError):
        parse_pin(f"conv *={NAME},bands=5")
