"""Depthwise and 1x1 convolutions as one kernel, against NumPy and against kernels of their own."""

import dataclasses
import math

import numpy as np
import pytest
import reference
import tvm
from effort import crossed, examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx

from tvm_blislike.choose.constraints import Constraints, Pin, parse_pin
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import DepthwiseGeometry
from tvm_blislike.cost_models.slabs import estimate as model
from tvm_blislike.cost_models.slabs.config import NAME
from tvm_blislike.cost_models.slabs.estimate import Layers
from tvm_blislike.cost_models.slabs.geometry import SlabGeometry, of_step
from tvm_blislike.errors import ChoiceError, UsageError
from tvm_blislike.hardware import native_core
from tvm_blislike.model.chain import ChainWorkload
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


def layers(n=1, ci=32, co=48, h=14, w=14, kernel=3, stride=1, padding=None, **more):
    """Return a depthwise layer and the channels of the 1x1 layer behind it.

    Parameters
    ----------
    more
        `wide`, channels of an image from which a 1x1 layer makes that of the depthwise one;
        `again`, another such case of the same channels behind this one; `read_twice`.
    """
    pads = (kernel // 2,) * 4 if padding is None else padding
    depthwise = Conv2dWorkload(n, ci, h, w, ci, kernel, kernel, (stride, stride), pads, groups=ci)
    return {"depthwise": depthwise, "co": co, **more}


def behind(case, kernel=3, stride=1, co=24):
    """Return a case with another pair of layers behind it."""
    w = case["depthwise"]
    return {**case, "again": layers(w.n, case["co"], co, w.oh, w.ow, kernel, stride)}


def convolutions(case):
    """Return the layers of a case in order: workloads."""
    w = case["depthwise"]
    found = [w, _pointwise(w.co, case["co"], w.n, w.oh, w.ow)]
    if case.get("wide"):
        found.insert(0, _pointwise(case["wide"], w.ci, w.n, w.h, w.w))
    return found + (convolutions(case["again"]) if case.get("again") else [])


def _pointwise(ci, co, n, h, w):
    return Conv2dWorkload(n, ci, h, w, co, 1, 1, (1, 1), (0,) * 4)


def module_of(case, activation, residual, rng):
    """Return the Relax module of a case, its inputs and its expected results."""
    chain = convolutions(case)
    given = [rng.standard_normal(chain[0].images[0], dtype=np.float32)]
    if residual:
        given.append(rng.standard_normal(chain[-1].images[1], dtype=np.float32))
    op, function = ACTIVATIONS[activation]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(given)]
    made, expected = [params[0]], given[0]
    with builder.function("main", params):
        with builder.dataflow():
            for w in chain:
                weights = rng.standard_normal(w.operands["weights"], dtype=np.float32)
                weights /= np.float32(math.sqrt(weights[0].size))
                bias = rng.standard_normal((1, w.co, 1, 1), dtype=np.float32)
                made.append(builder.emit(_convolution(made[-1], weights, bias, w)))
                expected = reference.conv2d(
                    expected, weights, None, w.stride, w.padding, w.dilation, w.groups
                )
                expected = expected + bias
                if w is not chain[-1]:
                    made.append(builder.emit(op(made[-1])))
                    expected = np.asarray(function(expected), np.float32)
            out = made[-1]
            if residual:
                out = builder.emit(relax.op.add(out, params[1]))
            if case.get("read_twice"):
                out = builder.emit_output([out, made[-2]])
            else:
                out = builder.emit_output(out)
        builder.emit_func_output(out)
    return builder.get(), given, expected + (given[1] if residual else 0)


def _convolution(image, weights, bias, w):
    made = relax.op.nn.conv2d(
        image, relax.const(weights), strides=w.stride, padding=w.padding, groups=w.groups
    )
    return relax.op.add(made, relax.const(bias))


def compiled(mod, threads=1, **limits):
    """Return the virtual machine and the report."""
    strategy = Strategy(CORE, threads, constraints=Constraints(**limits))
    run, report = compile_module(mod, strategy)
    return relax.VirtualMachine(run, tvm.cpu()), report


def pinned(rows):
    """Constraints that compute all chains in slabs of so many rows."""
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
    return report


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_a_residual(activation, threads):
    check(layers(), activation, True, 3, threads)


@pytest.mark.parametrize("rows, at_once", [(7, 7), (2, 2), (3, 1), (14, 14)])
def test_products_are_one_function(rows, at_once, monkeypatch):
    seen = []

    def counted(chain, code, geo, threads):
        func = kernel(chain, code, geo, threads)
        (product,) = set(code[1].values())
        assert product.rows == at_once
        parts = [*(c.func for c in code[0].values()), *([product.func] * len(code[1]))]
        assert stores(func) == sum(map(stores, parts))
        seen.append(len(code[0]))
        return func

    monkeypatch.setattr(slabs, "kernel", counted)
    check(layers(), "relu", True, rows, 2)
    assert seen == [len(SlabGeometry(tuple(convolutions(layers())), rows, 2).steps[0])]


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


@pytest.mark.parametrize(
    "shape, rows, threads",
    crossed([(3, 1), (3, 2), (5, 2), (5, 1)], [1, 2, 3, 5, 12], [1, 2, 3]),
)
def test_a_product_in_front(shape, rows, threads):
    kernel, stride = shape
    case = layers(2, 24, 16, 13, 11, kernel, stride, wide=8)
    report = check(case, "relu6", True, min(rows, case["depthwise"].oh), threads)
    assert [layer.implementation for layer in report.layers if layer.macs] == [NAME]


@pytest.mark.parametrize(
    "strides, wide, rows, threads",
    crossed([(1, 1), (2, 1), (1, 2)], [None, 8], [1, 2, 3], [1, 2]),
)
def test_two_pairs_of_layers(strides, wide, rows, threads):
    case = behind(layers(1, 16, 24, 14, 10, stride=strides[0], wide=wide), stride=strides[1], co=40)
    report = check(case, "relu", False, rows, threads)
    (found,) = (layer for layer in report.layers if layer.macs)
    assert found.workload.count("3x3") == 2


def test_layers_that_are_alike():
    # Functions of the layers are the same, their weights are not.
    check(behind(layers(1, 32, 32), co=32), "relu", False, 2, 2)


@given(
    st.integers(1, 40), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)
)
def test_slabs_are_the_whole(height, kernel, stride, above, below):
    above, below = min(above, kernel - 1), min(below, kernel - 1)
    if height + above + below < kernel:
        return
    chain = _chain_of(height, kernel, stride, above, below)
    for rows in range(1, chain[-1].oh + 1):
        for parts in (1, 2, 5):
            # With a layer in front of the depthwise one, and without: who knows of padding differs.
            _check_slabs(SlabGeometry(chain, rows, parts))
            _check_slabs(SlabGeometry(chain[1:], rows, parts))


def _chain_of(height, kernel, stride, above, below):
    """Return a 1x1 layer, a depthwise one and another 1x1 layer."""
    w = Conv2dWorkload(
        1, 16, height, 8, 16, kernel, 1, (stride, 1), (above, 0, below, 0), groups=16
    )
    return (_pointwise(4, 16, 1, height, 8), w, _pointwise(16, 8, 1, w.oh, w.ow))


def _check_slabs(geo):
    """Follow the rows of a chain's buffers, padding among them, from slab to slab."""
    of_slab = [{n: step for step, ns in steps.items() for n in ns} for steps in geo.steps]
    assert all(sorted(steps) == list(range(geo.count)) for steps in of_slab)
    results = []
    for number in range(geo.count):
        if number % geo.per_part == 0:
            held = [[None] * rows for rows in geo.buffer_rows]
        for layer, w in enumerate(geo.layers):
            step, place = of_slab[layer][number], number * geo.pitch(layer)
            first = step.start + place
            top = first * w.stride[0] - w.padding[0]
            if step.rows and layer:
                # All rows that are read are held, those of padding among them, from the front.
                slab = of_step(w, step)
                assert (
                    slab.oh == step.rows and slab.ow == w.ow and (step.above, step.below) == (0, 0)
                )
                assert held[layer - 1][: slab.h] == list(range(top, top + slab.h))
            elif step.rows:
                slab = of_step(w, step)
                assert slab.oh == step.rows
                assert step.read + place * w.stride[0] == top + step.above >= 0
                assert top + step.above + slab.h <= w.h
            new = [*range(first, first + step.rows)]
            if layer == len(geo.layers) - 1:
                assert step.written == step.start and not step.blank_above + step.blank_below
                results += new
                continue
            above = [*range(-step.blank_above, 0)]
            below = [*range(w.oh, w.oh + step.blank_below)]
            if above or below:
                # Padding is that of the layer behind.
                behind = geo.layers[layer + 1]
                assert len(above) <= behind.padding[0] and len(below) <= behind.padding[2]
            held[layer][: step.kept] = held[layer][step.moved : step.moved + step.kept]
            start = step.written - step.blank_above
            last = held[layer][start - 1] if start else None
            rows = [*above, *new, *below]
            if last is not None and rows:
                rows = [*range(last + 1, last + 1 + len(rows))]
                assert rows[len(above) : len(above) + len(new)] == new
            held[layer][start : start + len(rows)] = rows
            assert len(held[layer]) == geo.buffer_rows[layer]
    assert results == list(range(geo.layers[-1].oh))


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
    assert {c.implementation for c in found.candidates} == {NAME, "2 kernels"}


def test_pins_are_checked():
    pin = parse_pin(f"conv *, 1x1*={NAME},rows=5")
    assert pin.fields == (("rows", 5),)
    mod = module_of(layers(), "relu", False, np.random.default_rng(0))[0]
    with pytest.raises(ChoiceError, match="at most rows=14"):
        kinds(mod, **pinned(15))
    with pytest.raises(UsageError):
        parse_pin(f"conv *={NAME},bands=5")


def chosen_rows(case, core, threads=1):
    """Return the rows of the slabs of a case, 0 where there are none."""
    chain = ChainWorkload(tuple(convolutions(case)))
    return model.slab_rows(Layers(chain, ()), core, threads)


def with_caches(l1, l2):
    """Return the core of this machine with first and second level caches of these sizes."""
    first = dataclasses.replace(CORE.cache(1), bytes=l1)
    second = dataclasses.replace(CORE.cache(2) or CORE.cache(1), level=2, bytes=l2, shared_by=1)
    return dataclasses.replace(CORE, caches=(first, second))


def test_rows_follow_the_caches():
    wide = layers(ci=96, co=24, h=112, w=112, stride=2, wide=16)
    rows = [chosen_rows(wide, with_caches(48 << 10, kib << 10)) for kib in (128, 512, 1024, 4096)]
    assert rows[0] == 0 and 0 < rows[1] < rows[2] <= rows[3]
    pair = layers(ci=96, co=24, h=56, w=56)
    rows = [chosen_rows(pair, with_caches(kib << 10, 1 << 20)) for kib in (4, 32, 128)]
    assert rows[0] == 1 < rows[1] < rows[2]


@pytest.mark.parametrize("height", [112, 56, 28, 14, 7])
@pytest.mark.parametrize("threads", [2, 4, 8])
def test_threads_have_as_many_rows(height, threads):
    core, case = with_caches(48 << 10, 1 << 20), layers(ci=64, h=height, w=height)
    rows = chosen_rows(case, core, threads)
    geo = SlabGeometry(tuple(convolutions(case)), rows, threads)
    assert geo.per_part * rows <= math.ceil(height / threads) * 1.15


def test_chains_are_those_whose_images_leave_the_second_cache():
    core = with_caches(48 << 10, 1 << 20)

    def is_joined(case):
        return not model.why_not(Layers(ChainWorkload(tuple(convolutions(case))), ()), core)

    assert is_joined(layers(ci=96, h=112, w=112, wide=16))
    assert not is_joined(layers(ci=96, h=28, w=28, wide=16))
    assert is_joined(behind(layers(ci=32, co=64, h=112, w=112)))
    # The image in front of the second depthwise layer stays, those of the first do not.
    assert not is_joined(behind(layers(ci=64, co=16, h=112, w=112, stride=2)))
