"""The default CPU rule on random shapes, against numpy."""

import numpy as np
from default_graphs import (
    check,
    data,
    pool,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm.relax import op

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
