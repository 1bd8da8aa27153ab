"""What the tests of every convolution algorithm check in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tvm
import tvm_ffi
from conv_harness import STEPS, arrays, build, compiled, expected, nchw, placed, primfunc
from conv_workloads import NATIVE
from hypothesis import strategies as st
from tvm import runtime, te, tirx

from tvm_blislike.hardware import Core
from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.tvm_seams.runtime import configure_pool

EPILOGUES = [
    *([step] for step in STEPS),
    ["bias", "residual", "relu"],
    ["bias", "relu", "residual"],
    ["residual_first", "bias", "silu"],
    ["scale", "bias", "hard_swish", "residual_first", "clip"],
]


def epilogues(most: int) -> st.SearchStrategy[list[str]]:
    """Up to `most` steps in any order."""
    return st.lists(st.sampled_from(STEPS), max_size=most)


def best(
    implementation: Implementation, workload: Conv2dWorkload, core: Core = NATIVE, threads: int = 1
) -> Config:
    """Return the configuration of the shortest predicted time."""
    configs = implementation.configs(workload, core, threads)
    return min(configs, key=lambda c: implementation.estimate(workload, c, core, threads).seconds)


def result(
    workload: Conv2dWorkload,
    config: Config,
    values: Sequence[np.ndarray] | None = None,
    threads: int = 1,
    core: Core = NATIVE,
) -> np.ndarray:
    """Compile and run here without an epilogue; return NCHW."""
    values = arrays(workload) if values is None else values
    arguments = [runtime.tensor(a) for a in placed(workload, config, [], values)]
    build(workload, config, core, threads)["main"](*arguments)
    return nchw(arguments[-1].numpy(), config.out_layout, workload.co)


def assert_threads_do_not_change_a_bit(workload: Conv2dWorkload, config: Config) -> None:
    """Compare one thread with two, and with more than this machine may have CPUs."""
    one, two = (result(workload, config, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    for threads in (4, 8):
        np.testing.assert_array_equal(one, by_workers(workload, config, threads))


def by_workers(workload: Conv2dWorkload, config: Config, workers: int) -> np.ndarray:
    """Return `result` computed by a pool of so many workers, which take turns on the CPUs."""
    cpus = usable_cpus()

    def run() -> np.ndarray:
        used = configure_pool(workers, [cpus[i % len(cpus)] for i in range(workers)])
        assert used == workers
        return result(workload, config, threads=workers)

    # A thread of its own has a pool of its own.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def assert_non_finite_pixels_stay_where_they_are(
    implementation: Implementation,
) -> None:
    """No pixel takes part in an output that does not read it, not even times zero."""
    workload = Conv2dWorkload(1, 32, 9, 11, 48, 3, 3, padding=(1, 1, 1, 1))
    values = arrays(workload)
    values[0][0, 5, 4, 6] = np.nan
    values[0][0, 7, 0, 0] = np.inf
    finite = np.isfinite(result(workload, best(implementation, workload), values)[0])
    touched = np.zeros((9, 11), bool)
    touched[3:6, 5:8] = touched[:2, :2] = True
    np.testing.assert_array_equal(finite, np.broadcast_to(~touched, finite.shape))


def packed_at_run_time(
    implementation: Implementation, workload: Conv2dWorkload, config: Config, weights: np.ndarray
) -> np.ndarray:
    """Return what the compiled `pack_te` makes of the weights; what it does not write is NaN."""
    operand = te.placeholder(weights.shape, name="weights")
    packed = implementation.pack_te(workload, config, operand)
    library = tvm.compile(te.create_prim_func([operand, packed]), "llvm")
    out = runtime.tensor(np.full([int(extent) for extent in packed.shape], np.nan, "float32"))
    library["main"](runtime.tensor(weights), out)
    return out.numpy()


def assert_packed_once_and_alike(
    implementation: Implementation, workload: Conv2dWorkload, config: Config
) -> np.ndarray:
    """Beside every weight once there are zeros only, at run time too; return the packed array."""
    weights = np.abs(arrays(workload)[1]) + 1
    packed = implementation.pack(workload, config, weights)
    assert sorted(packed[packed != 0]) == sorted(weights.ravel())
    found = packed_at_run_time(implementation, workload, config, weights)
    np.testing.assert_array_equal(found, packed)
    return packed


def assert_result_may_be_broadcast(workload: Conv2dWorkload, config: Config) -> None:
    """Squeeze-and-excite: what follows is larger, so the one pixel is stored and read again."""
    n, channels = workload.n, workload.co
    shape = Layout(config.out_layout).shape(n, channels, 5, 6)
    assert len(shape) == 5

    def scaled(gate: te.Tensor, image: te.Tensor) -> te.Tensor:
        return te.compute(
            shape, lambda n, c, y, x, i: image[n, c, y, x, i] * gate[n, c, 0, 0, i], name="scaled"
        )

    library = compiled(primfunc(workload, config, ["sigmoid"], (shape, scaled)), NATIVE, 2)
    pixels = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    values = arrays(workload)
    operands = placed(workload, config, [], values)[:2]
    arguments = [*map(runtime.tensor, (*operands, pixels, np.full(shape, np.nan, "float32")))]
    library["main"](*arguments)
    image, actual = (nchw(a, config.out_layout, channels) for a in (pixels, arguments[-1].numpy()))
    wanted = expected(workload, ["sigmoid"], values) * image
    np.testing.assert_allclose(actual, wanted, atol=1e-5)


def allocations(stmt: tirx.Stmt) -> list[tuple[str, int]]:
    """Name and bytes, gaps included, of each buffer that a statement allocates."""
    buffers: list[tirx.Buffer] = []
    tvm_ffi.structural_walk(stmt, [(tirx.AllocBuffer, lambda a: buffers.append(a.buffer))])
    elements = [
        int(b.shape[0]) * int(b.strides[0]) if len(b.strides) else math.prod(map(int, b.shape))
        for b in buffers
    ]
    return [(b.name, 4 * count) for b, count in zip(buffers, elements, strict=True)]
