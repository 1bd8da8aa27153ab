"""Random convolutions, and random configurations of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume
from hypothesis import strategies as st

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.model.workload import Conv2dWorkload, Conv3dWorkload

NATIVE = native_core()
# Cores whose kernels this machine runs.
RUNNABLE = [NATIVE, *([Core.named("x86-64-v3")] if NATIVE.isa.name == "avx512" else [])]
# No size a multiple of anything, or everything; one pixel, few and many of everything.
ODD_CONVOLUTIONS = [
    Conv2dWorkload(1, 1, 1, 1, 1, 1, 1),
    Conv2dWorkload(1, 3, 299, 299, 32, 3, 3, (2, 2)),
    Conv2dWorkload(1, 3, 31, 33, 24, 7, 7, (2, 2), (3, 3, 3, 3)),
    Conv2dWorkload(3, 37, 17, 19, 53, 3, 3, (1, 2), (0, 1, 2, 1), (2, 1)),
    Conv2dWorkload(1, 512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1)),
    Conv2dWorkload(1, 64, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)),
    Conv2dWorkload(2, 24, 149, 1, 57, 5, 1, padding=(2, 0, 2, 0)),
    Conv2dWorkload(1, 2048, 1, 1, 1000, 1, 1),
]
# For cost models, which compute nothing.
LARGE_CHANNELS = st.one_of(st.sampled_from([3, 16, 24, 64, 256, 512]), st.integers(1, 300))
_USUAL_CHANNELS = st.one_of(st.sampled_from([3, 8, 16, 24, 32, 48, 57, 64]), st.integers(1, 70))


@st.composite
def convolutions(
    draw: st.DrawFn,
    *,
    channels: st.SearchStrategy[int] = _USUAL_CHANNELS,
    groups: Sequence[int] = (1,),
    image: int = 24,
    stride: int = 3,
    dilation: int = 2,
    most_macs: float = 5e6,
) -> Conv2dWorkload:
    """Draw a convolution with at least one output.

    `channels` are those of one group; `image`, `stride` and `dilation` the largest of their kind.
    Few multiplications, so that compiling takes most of the time, are enough for tiles, slabs and
    panels to be whole, cut and alone.
    """
    groups_drawn = draw(st.sampled_from(groups))
    size, kernel = st.integers(1, image), st.integers(1, 7)
    step, apart = st.integers(1, stride), st.integers(1, dilation)
    workload = Conv2dWorkload(
        n=draw(st.integers(1, 3)),
        ci=groups_drawn * draw(channels),
        h=draw(size),
        w=draw(size),
        co=groups_drawn * draw(channels),
        kh=draw(kernel),
        kw=draw(kernel),
        stride=(draw(step), draw(step)),
        # Up to more than most kernels need.
        padding=draw(st.tuples(*[st.integers(0, 4)] * 4)),
        dilation=(draw(apart), draw(apart)),
        groups=groups_drawn,
    )
    assume(workload.oh > 0 and workload.ow > 0 and workload.macs <= most_macs)
    return workload


@st.composite
def volumes(draw: st.DrawFn, types: Types = FLOAT32) -> Conv3dWorkload:
    """Draw a depthwise convolution of one volume with at least one output."""
    channels = draw(st.sampled_from([1, 2, 7, 16, 24, 32, 37, 57]))
    times = draw(st.sampled_from([1, 1, 2])) if types == FLOAT32 else 1
    size, kernel, step = st.integers(1, 12), st.integers(1, 4), st.integers(1, 2)
    workload = Conv3dWorkload(
        n=draw(st.integers(1, 6)),
        ci=max(2, channels),
        h=draw(size),
        w=draw(size),
        co=max(2, channels) * times,
        kh=draw(kernel),
        kw=draw(kernel),
        stride=(draw(step), draw(step)),
        padding=draw(st.tuples(*[st.integers(0, 2)] * 4)),
        dilation=(draw(step), draw(step)),
        groups=max(2, channels),
        types=types,
        depth_taps=draw(st.integers(2, 4)),
        depth_stride=draw(st.integers(1, 3)),
        depth_padding=draw(st.tuples(*[st.integers(0, 3)] * 2)),
        depth_dilation=draw(step),
    )
    assume(min(workload.od, workload.oh, workload.ow) > 0)
    return workload


def one_config(
    draw: st.DrawFn,
    implementation: Implementation,
    workload: Conv2dWorkload,
    core: Core,
    threads: int,
    fields: Sequence[str],
) -> Config:
    """Draw one configuration, a value of each field after the other.

    Every value is as likely as any other of its field, however many configurations have it.
    """
    assume(implementation.applies(workload, core) == "")
    left = list(implementation.configs(workload, core, threads))
    for field in fields:
        value = draw(st.sampled_from(sorted({getattr(c, field) for c in left})))
        left = [c for c in left if getattr(c, field) == value]
    return left[0]
