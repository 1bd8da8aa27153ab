"""Random workloads, one for each way an implementation can go, as kernels for the board."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import reference
from board_kernels import Kernel
from conv_harness import ACTIVATIONS, arrays, expected, nchw, placed
from conv_harness import primfunc as conv_primfunc
from tvm import s_tir, te, tirx

from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.marks import CHOICE
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, Conv3dWorkload, GemmWorkload, Workload
from tvm_blislike.passes.plan import note_of
from tvm_blislike.schedules.common import stages

# Enough for tiles, slabs and panels to be whole, cut and alone; little for the emulator.
_MOST_MACS = 2e6
_TRIES = 5000


def random_kernel(
    implementation: Implementation,
    core: Core,
    threads: int,
    steps: Sequence[str],
    seed: int,
    dtype: str = "float32",
) -> Kernel:
    """Return a random workload in a random configuration of the implementation, with an epilogue.

    Raises
    ------
    AssertionError
        When the implementation applies to none of many random workloads.
    """
    rng = random.Random(seed)
    for _ in range(_TRIES):
        workload = random_workload(implementation, rng)
        workload = workload and replace(workload, types=Types.of(dtype))
        if workload is None or implementation.applies(workload, core):
            continue
        # What never pays for so little work is still in the space.
        configs = list(implementation.configs(workload, core, threads))
        configs = configs or list(implementation.space(workload, core, threads))
        if configs:
            make = gemm_kernel if implementation.kind == "gemm" else conv_kernel
            return make(implementation, workload, rng.choice(configs), steps)
    raise AssertionError(f"{implementation.name} applies to nothing on {core.name}")


def random_workload(implementation: Implementation, rng: random.Random) -> Workload | None:
    """Return a workload of an implementation's kind, or None: not every draw makes one."""
    draw = {"gemm": _gemm, "conv3d": _volume}.get(implementation.kind, _convolution)
    return draw(rng)


def conv_kernel(
    _implementation: Implementation, workload: Conv2dWorkload, config: Config, steps: Sequence[str]
) -> Kernel:
    """Return one convolution."""
    values = arrays(workload, steps)
    wanted = expected(workload, steps, values)
    scale = max(np.abs(wanted).max(), 1.0)

    def error(result: np.ndarray) -> float:
        return np.abs(nchw(result, config.out_layout, workload.co) - wanted).max() / scale

    func = conv_primfunc(workload, config, steps)
    return Kernel(
        _label(workload, config, steps), func, placed(workload, config, steps, values), error
    )


def gemm_kernel(
    implementation: Implementation, workload: GemmWorkload, config: Config, steps: Sequence[str]
) -> Kernel:
    """Return one matrix product; a bias is one value per column."""
    w, rng = workload, np.random.default_rng(7)
    batch = (w.batch,) if w.batch > 1 else ()
    a = rng.standard_normal((*batch, w.m, w.k)).astype(w.types.a)
    b = (rng.standard_normal((w.k, w.n)) / np.sqrt(w.k)).astype(w.types.a)
    packed = implementation.pack(w, config, b)
    data, constant = params = [
        te.placeholder(x.shape, w.types.a, n) for x, n in ((a, "a"), (packed, "b"))
    ]
    value = implementation.compute(w, config, data, constant)
    wanted, operands = reference.gemm(a.astype(np.float32), b.astype(np.float32)), []
    for number, step in enumerate(steps):
        operand = None
        if step not in ACTIVATIONS:
            values = rng.standard_normal(_operand(step, wanted.shape)).astype(w.types.a)
            operands.append(values)
            operand = te.placeholder(values.shape, w.types.a, f"operand_{number}")
            params.append(operand)
        value = _step(value, step, operand, f"step_{number}")
        wanted = _reference_step(wanted, step, operands[-1] if operand is not None else None)
    func = chosen(w, config, [*params, value])
    scale = max(np.abs(wanted).max(), 1.0)

    def error(result: np.ndarray) -> float:
        return np.abs(result - wanted).max() / scale

    arguments = [a, packed, *operands, np.empty(wanted.shape, w.types.out)]
    return Kernel(_label(w, config, steps), func, arguments, error)


def chosen(workload: Workload, config: Config, tensors: Sequence[te.Tensor]) -> tirx.PrimFunc:
    """Return the unscheduled function of tensors, with its choice."""
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    sch.annotate(stages(sch)["unpack"], CHOICE, note_of(workload, config))
    return sch.mod["main"].with_attr("tirx.noalias", True)


def _operand(step: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[-1],) if step in ("bias", "scale") else shape


def _step(value: te.Tensor, step: str, operand: te.Tensor | None, name: str) -> te.Tensor:
    if operand is None:
        function = ACTIVATIONS[step][0]
        return te.compute(value.shape, lambda *i: function(value(*i)), name=name)

    def at(index: tuple[Any, ...]) -> Any:
        return operand(*index[len(index) - len(operand.shape) :])

    if step == "scale":
        return te.compute(value.shape, lambda *i: value(*i) * at(i), name=name)
    return te.compute(value.shape, lambda *i: value(*i) + at(i), name=name)


def _reference_step(value: np.ndarray, step: str, operand: np.ndarray | None) -> np.ndarray:
    if operand is None:
        return ACTIVATIONS[step][1](value)
    return value * operand if step == "scale" else value + operand


def _gemm(rng: random.Random) -> GemmWorkload:
    def size(most: int) -> int:
        return rng.choice([1, rng.randint(1, 12), rng.randint(1, most)])

    return GemmWorkload(size(70), size(130), size(200), rng.choice([1, 1, 3]))


def _convolution(rng: random.Random) -> Conv2dWorkload | None:
    """Return one of any kind: plain, depthwise, grouped; None where it has no output."""
    per_group = rng.choice([1, 2, 3, 4, 8, rng.randint(1, 40)])
    groups = rng.choice([1, 1, 1, 4, 8, 16, rng.randint(1, 40)])
    out_per_group = per_group if groups > 1 else rng.choice([8, 16, rng.randint(1, 60)])
    dilation = rng.choice([1, 1, 1, 2])
    stride = rng.choice([1, 1, 2, 3])
    workload = Conv2dWorkload(
        n=rng.choice([1, 1, 2]),
        ci=groups * per_group,
        h=rng.randint(1, 20),
        w=rng.randint(1, 24),
        co=groups * out_per_group,
        kh=rng.choice([1, 3, 5, rng.randint(1, 7)]),
        kw=rng.choice([1, 3, 5, rng.randint(1, 7)]),
        stride=rng.choice([(stride, stride), (1, 2), (2, 1)]),
        padding=rng.choice([(0, 0, 0, 0), (1, 1, 1, 1), tuple(rng.choices(range(4), k=4))]),
        dilation=(dilation, dilation),
        groups=groups,
    )
    whole = workload.oh > 0 and workload.ow > 0 and workload.macs <= _MOST_MACS
    return workload if whole else None


def _volume(rng: random.Random) -> Conv3dWorkload | None:
    """Return a depthwise convolution of a volume; None where it has no output."""
    image = _convolution(rng)
    if image is None or image.groups == 1:
        return None
    of_image = {field.name: getattr(image, field.name) for field in fields(image)}
    channels = {"ci": image.groups, "co": image.groups}
    workload = Conv3dWorkload(
        **{**of_image, **channels, "n": rng.randint(1, 5)},
        depth_taps=rng.randint(2, 3),
        depth_stride=rng.randint(1, 2),
        depth_padding=rng.choice([(0, 0), (1, 1), (0, 2)]),
        depth_dilation=rng.randint(1, 2),
    )
    return workload if workload.od > 0 else None


def _label(workload: Workload, config: Config, steps: Sequence[str]) -> str:
    return f"{workload} {'+'.join(steps)} {config}"
