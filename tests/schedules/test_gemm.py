"""Matrix multiplication against numpy: every path of the template, and the code it becomes."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import reference
import tvm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tvm import s_tir, te

from tvm_blislike.cost_models.gemm import estimate as model
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import (
    A_OUTSIDE,
    B_OUTSIDE,
    IN_PLACE,
    LOOP_ORDERS,
    PACKED,
    GemmGeometry,
)
from tvm_blislike.hardware import Core, names, native_core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.schedules.gemm.definition import IMPLEMENTATION
from tvm_blislike.schedules.lowering import lower as lowering

NATIVE = native_core()
KERNELS = {(k.mr, k.nr): k for k in kernels_for(NATIVE)}
LANES = NATIVE.lanes()
# A tall and a wide block of the native instruction set.
TALL = max(KERNELS, key=lambda shape: (shape[0] * (shape[1] == 2 * LANES), shape))
WIDE = max((s for s in KERNELS if s[0] == 1), key=lambda shape: shape[1])
AVX512 = Core.named("sapphirerapids")


def config(kernel=TALL, tiles=(0, 0), kc=0, order=B_OUTSIDE, layout=PACKED, prefetch=1, unroll=4):
    """Describe a blocking; `tiles` are those of a block along m and n."""
    return GemmConfig(
        mr=kernel[0],
        nr=kernel[1],
        unroll=unroll,
        mc=tiles[0] * kernel[0],
        nc=tiles[1] * kernel[1],
        kc=kc,
        loop_order=order,
        packing=layout,
        prefetch=prefetch,
    )


def biased(value: te.Tensor, params: list[te.Tensor]) -> te.Tensor:
    """Add a bias over n and a residual, then clip at zero."""
    bias = te.placeholder((value.shape[-1],), name="bias")
    residual = te.placeholder(value.shape, name="residual")
    params += [bias, residual]
    with_bias = te.compute(value.shape, lambda *i: value(*i) + bias[i[-1]], name="with_bias")
    added = te.compute(value.shape, lambda *i: with_bias(*i) + residual(*i), name="added")
    return te.compute(value.shape, lambda *i: te.max(added(*i), 0.0), name="clipped")


def lowered(
    workload: GemmWorkload,
    config: Config,
    core: Core = NATIVE,
    threads: int = 1,
    rank: int = 3,
    shared: bool = True,
    epilogue: Any = biased,
) -> tvm.IRModule:
    """Lower (A, B, operands of the epilogue ..., C); B is packed unless it is not constant."""
    w = workload
    batch = (w.batch,) if rank == 3 else ()
    a = te.placeholder((*batch, w.m, w.k), w.types.a, name="a")
    if w.constant_b:
        b = packed = te.placeholder(GemmGeometry(w, config).packed_shape, w.types.b, name="b")
    else:
        b = te.placeholder((w.k, w.n) if shared else (w.batch, w.k, w.n), name="b")
        packed = IMPLEMENTATION.pack_te(w, config, b)
    params = [a, b]
    result = IMPLEMENTATION.compute(w, config, a, packed)
    result = epilogue(result, params) if epilogue else result
    func = te.create_prim_func([*params, result])
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True))
    IMPLEMENTATION.schedule(sch, w, config, core, threads)
    register_bytes = core.vector_registers * core.vector_bits // 8
    ours = sch.mod["main"].with_attr(REGISTER_BYTES, register_bytes)
    return lowering.lower(tvm.IRModule({"main": ours}))


def compiled(module: tvm.IRModule, core: Core = NATIVE, threads: int = 1) -> Any:
    return tvm.compile(module, tvm.target.Target(core.target_config(threads)))


def operands(w: GemmWorkload, shared: bool = True) -> list[np.ndarray]:
    """Random A, B, bias and residual."""
    rng = np.random.default_rng(11)
    b_shape = (w.k, w.n) if shared else (w.batch, w.k, w.n)
    shapes = ((w.batch, w.m, w.k), b_shape, (w.n,), (w.batch, w.m, w.n))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def error(
    w: GemmWorkload, config: Config, threads: int = 1, rank: int = 3, shared: bool = True
) -> float:
    """Build and run; return the largest error over the largest product, at least 1."""
    a, b, bias, residual = operands(w, shared)
    module = lowered(w, config, NATIVE, threads, rank, shared)
    second = IMPLEMENTATION.pack(w, config, b) if w.constant_b else b
    shape = (w.batch, w.m, w.n)[3 - rank :]
    values = [a.reshape((w.batch, w.m, w.k)[3 - rank :]), second, bias, residual.reshape(shape)]
    values.append(np.full(shape, np.nan, np.float32))
    arguments = [tvm.runtime.tensor(value) for value in values]
    compiled(module, NATIVE, threads)["main"](*arguments)
    product = reference.gemm(a, b)
    wanted = np.maximum(product + bias + residual, 0.0).reshape(shape)
    largest = max(1.0, np.abs(product).max())
    return float(np.abs(arguments[-1].numpy() - wanted).max() / largest)


def test_is_an_implementation() -> None:
    assert isinstance(IMPLEMENTATION, Implementation)
    assert (IMPLEMENTATION.name, IMPLEMENTATION.kind) == ("gemm", "gemm")
    assert IMPLEMENTATION.applies(GemmWorkload(2, 3, 4), NATIVE) == ""
    assert "int8" in IMPLEMENTATION.applies(GemmWorkload(2, 3, 4, types=Types.of("int8")), NATIVE)
    assert Conv2dWorkload.kind != IMPLEMENTATION.kind


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", [PACKED, IN_PLACE])
@pytest.mark.parametrize("order", LOOP_ORDERS)
@pytest.mark.parametrize("kc", [0, 23])
def test_every_path(order: str, layout: str, kc: int, threads: int) -> None:
    """Several blocks along m, n and k, each with a cut last tile."""
    mr, nr = TALL
    workload = GemmWorkload(5 * mr + 3, 3 * nr + LANES + 3, 61)
    blocking = config(tiles=(2, 2), kc=kc, order=order, layout=layout)
    assert error(workload, blocking, threads) < 1e-6


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_random_products_and_blockings(data: st.DataObject) -> None:
    draw = data.draw
    m, n, k = draw(st.integers(1, 70)), draw(st.integers(1, 150)), draw(st.integers(1, 70))
    workload = GemmWorkload(m, n, k, draw(st.integers(1, 3)), constant_b=draw(st.booleans()))
    fitting = [s for s in KERNELS if s[0] <= m and s[1] < n + LANES]
    assume(fitting)
    blocking = config(
        draw(st.sampled_from(fitting)),
        (draw(st.integers(0, 3)), draw(st.integers(0, 3))),
        draw(st.integers(0, k)),
        draw(st.sampled_from(LOOP_ORDERS)),
        draw(st.sampled_from((PACKED, IN_PLACE))),
        draw(st.integers(0, 1)),
        draw(st.integers(1, 5)),
    )
    shared = workload.constant_b or draw(st.booleans())
    rank = 2 if workload.batch == 1 and draw(st.booleans()) else 3
    assert error(workload, blocking, draw(st.sampled_from((1, 2))), rank, shared) < 2e-6


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (1, 7, 1), (7, 1, 1), (1, 1, 7), (1, 1000, 130), (3, 259, 64), (49, 97, 31)],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_predicted_best_configuration_is_correct(
    shape: tuple[int, int, int], threads: int
) -> None:
    workload = GemmWorkload(*shape)
    chosen = min(
        IMPLEMENTATION.configs(workload, NATIVE, threads),
        key=lambda c: IMPLEMENTATION.estimate(workload, c, NATIVE, threads).seconds,
    )
    assert error(workload, chosen, threads, rank=2) < 1e-6


def test_run_time_packing_gives_the_same_bits() -> None:
    known = GemmWorkload(37, 3 * LANES + 5, 29)
    unknown = GemmWorkload(37, 3 * LANES + 5, 29, constant_b=False)
    blocking = config(tiles=(1, 1), kc=11)
    a, b, _, _ = operands(known)
    results = []
    for workload, second in ((known, IMPLEMENTATION.pack(known, blocking, b)), (unknown, b)):
        out = tvm.runtime.tensor(np.empty((1, known.m, known.n), np.float32))
        function = compiled(lowered(workload, blocking, epilogue=None))["main"]
        function(tvm.runtime.tensor(a), tvm.runtime.tensor(second), out)
        results.append(out.numpy())
    np.testing.assert_array_equal(results[0], results[1])


def test_packed_b_is_what_the_geometry_says() -> None:
    workload, blocking = GemmWorkload(4, 2 * LANES + 3, 5), config((1, LANES))
    b = operands(workload)[1]
    packed = IMPLEMENTATION.pack(workload, blocking, b)
    assert packed.shape == GemmGeometry(workload, blocking).packed_shape == (1, 3, 5, LANES)
    np.testing.assert_array_equal(packed[0, 1], b[:, LANES : 2 * LANES])
    np.testing.assert_array_equal(packed[0, 2, :, :3], b[:, 2 * LANES :])
    assert not packed[0, 2, :, 3:].any()


def test_an_epilogue_that_broadcasts_the_result_keeps_its_own_loops() -> None:
    workload, blocking = GemmWorkload(9, 2 * LANES, 8), config((1, LANES))

    def widened(value: te.Tensor, params: list[te.Tensor]) -> te.Tensor:
        other = te.placeholder((5, *value.shape), name="other")
        params.append(other)
        return te.compute(other.shape, lambda *i: other(*i) + value(*i[1:]), name="widened")

    a, b, _, _ = operands(workload)
    other = np.random.default_rng(3).standard_normal((5, 1, 9, 2 * LANES), dtype=np.float32)
    out = tvm.runtime.tensor(np.empty_like(other))
    module = lowered(workload, blocking, epilogue=widened)
    packed = IMPLEMENTATION.pack(workload, blocking, b)
    compiled(module)["main"](*map(tvm.runtime.tensor, (a, packed, other)), out)
    np.testing.assert_allclose(out.numpy(), other + reference.gemm(a, b), rtol=0, atol=1e-5)


# What the code must look like; compiled for AVX-512 on any machine.


def k_loops(assembly: str, product: str = "fmadd") -> list[list[str]]:
    """Return the instructions of every innermost loop with products, by default fused."""
    lines = [line.strip() for line in assembly.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", ".cfi", ".loc", ".Ltmp"))]
    place = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\.LBB\w+:", line)}
    loops = []
    for end, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\.LBB\w+)", line)
        if jump and place.get(jump.group(1), end) < end:
            body = lines[place[jump.group(1)] + 1 : end]
            if not any(inner.endswith(":") for inner in body):
                loops.append(body)
    return [loop for loop in loops if any(product in line for line in loop)]


@pytest.mark.parametrize("layout", [PACKED, IN_PLACE])
@pytest.mark.parametrize("order", LOOP_ORDERS)
@pytest.mark.parametrize("kernel", [(14, 32), (13, 32), (12, 32), (8, 48)], ids=str)
def test_the_k_loop_keeps_c_in_registers(kernel: tuple[int, int], order: str, layout: str) -> None:
    """Edges included; the prefetches must not make LLVM keep sums in memory."""
    mr, nr = kernel
    workload = GemmWorkload(4 * mr + 5, 4 * nr + 16, 512)
    blocking = config(kernel, (2, 2), kc=256, order=order, layout=layout)
    library = compiled(lowered(workload, blocking, AVX512), AVX512)
    loops = k_loops(library.mod.inspect_source("asm"))
    full = [loop for loop in loops if sum("fmadd" in x for x in loop) == 4 * mr * nr // 16]
    assert full
    assert any("prefetch" in line for loop in loops for line in loop)
    for loop in loops:
        spills = [line for line in loop if "zmm" in line and "(%rsp" in line]
        assert not spills
        stores = [line for line in loop if re.match(r"v?mov\w+\s+%zmm\d+, \S*\(", line)]
        assert not stores


@pytest.mark.parametrize("layout", [PACKED, IN_PLACE])
@pytest.mark.parametrize("order", LOOP_ORDERS)
@pytest.mark.parametrize("kernel", [(14, 32), (27, 16)], ids=str)
def test_k_loops_of_bytes_ask_ahead(kernel: tuple[int, int], order: str, layout: str) -> None:
    """A step of k asks for each line of a row of the panel of B, and keeps C in registers."""
    (mr, nr), core = kernel, Core.named("zen4")
    types = Types("uint8", "int8", "int32", "int32")
    workload = GemmWorkload(4 * mr + 5, 4 * nr + 16, 512, types=types)
    blocking = config(kernel, (2, 2), order=order, layout=layout).with_fields(ks=4, kc=256)
    library = compiled(lowered(workload, blocking, core, epilogue=None), core)
    loops = k_loops(library.mod.inspect_source("asm"), "vpdpbusd")
    whole = [x for x in loops if sum("vpdpbusd" in line for line in x) == 4 * mr * nr // 16]
    assert whole
    for loop in whole:
        assert sum("prefetch" in line for line in loop) >= 4 * nr // 16
        assert not [line for line in loop if "zmm" in line and "(%rsp" in line]


def test_nothing_is_allocated_where_a_is_read_in_place() -> None:
    module = lowered(GemmWorkload(28, 64, 64), config((14, 32), layout=IN_PLACE), AVX512)
    assert "AllocWorkspace" not in compiled(module, AVX512).mod.inspect_source("ll")


def allocated(module: tvm.IRModule) -> dict[str, tuple[str, int]]:
    """Return data type and elements of the buffers of a function, by name."""
    found = re.findall(r"(\w+) = T.alloc_buffer\(\((.*?),?\)(?:, \"(\w+)\")?", module.script())
    sizes = {name: math.prod(map(int, shape.split(","))) for name, shape, _ in found}
    return {name: (dtype or "float32", sizes[name]) for name, _, dtype in found}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", LOOP_ORDERS)
def test_c_is_updated_in_place(order: str, threads: int) -> None:
    """Three blocks of k: no buffer but tiles; the first sums are stored, the others added."""
    workload, blocking = GemmWorkload(60, 200, 96), config((14, 32), (2, 2), kc=32, order=order)
    module = lowered(workload, blocking.with_fields(packing=IN_PLACE), AVX512, threads)
    assert max(size for _, size in allocated(module).values()) <= 14 * 32
    stores = re.findall(r"clipped\[(.*?)\] = (.*)", module.script())
    assert not any("T.float32(0.0), 16)" in value and "max" not in value for _, value in stores)
    assert any(value.startswith("head") for _, value in stores)
    assert any(value.startswith("clipped[") for _, value in stores)
    assert "AllocWorkspace" not in compiled(module, AVX512).mod.inspect_source("ll")


def test_sums_of_another_type_than_c_have_a_block() -> None:
    """A cast fused behind the product: C cannot hold fp32 sums."""
    workload = GemmWorkload(2 * TALL[0] + 1, 3 * LANES, 70)
    blocking = config(tiles=(1, 1), kc=30, layout=IN_PLACE)

    def narrowed(value: te.Tensor, _params: list[te.Tensor]) -> te.Tensor:
        return te.compute(value.shape, lambda *i: value(*i).astype("float16"), name="narrowed")

    module = lowered(workload, blocking, epilogue=narrowed)
    assert allocated(module)["sums"] == ("float32", workload.m * TALL[1])
    a, b, _, _ = operands(workload)
    out = tvm.runtime.tensor(np.empty((1, workload.m, workload.n), np.float16))
    arguments = map(tvm.runtime.tensor, (a, IMPLEMENTATION.pack(workload, blocking, b)))
    compiled(module)["main"](*arguments, out)
    np.testing.assert_allclose(out.numpy(), reference.gemm(a, b), rtol=2e-3, atol=2e-2)


def test_a_result_is_stored_once() -> None:
    """Bias, residual and activation happen in registers: C is neither read nor stored twice."""
    module = lowered(GemmWorkload(28, 64, 64), config((14, 32)), AVX512)
    stores = re.findall(r"clipped\[.*\] = ", module.script())
    assert len(stores) == 14 * 2
    assert not re.search(r"= .*clipped\[", module.script())


# The model


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("threads", [1, 4])
def test_every_core_has_sensible_configurations(name: str, threads: int) -> None:
    core = Core.named(name)
    for workload in (GemmWorkload(1, 1000, 2048), GemmWorkload(97, 250, 1152)):
        offered = list(IMPLEMENTATION.configs(workload, core, threads))
        assert offered
        assert {c.loop_order for c in offered} <= set(LOOP_ORDERS)
        for c in offered:
            assert c.mr <= workload.m
            assert c.mc % c.mr == c.nc % c.nr == 0 and 1 <= c.kc <= workload.k
            estimate = IMPLEMENTATION.estimate(workload, c, core, threads)
            assert 0.0 < estimate.peak_fraction <= 1.0
            assert all(cycles >= 0.0 for cycles in estimate.cycles.values())


def test_blocks_fit_into_the_second_level() -> None:
    core, workload = AVX512, GemmWorkload(2048, 2048, 2048)
    room = core.cache(2).bytes
    for c in IMPLEMENTATION.configs(workload, core, 1):
        a_panel, b_panel = (c.mr * c.kc * 4, c.nr * c.kc * 4)
        if c.loop_order == B_OUTSIDE:
            assert c.mc == c.mr or c.mc * c.kc * 4 + 2 * b_panel <= room
        else:
            assert c.nc == c.nr or c.nc * c.kc * 4 + 2 * a_panel <= room


def test_threads_get_equal_parts() -> None:
    workload = GemmWorkload(3136, 64, 576)
    chosen = min(
        IMPLEMENTATION.configs(workload, AVX512, 2),
        key=lambda c: IMPLEMENTATION.estimate(workload, c, AVX512, 2).seconds,
    )
    geo = GemmGeometry(workload, chosen)
    assert geo.share(geo.parallel_loop(2), 2) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "order"), [((3136, 64, 576), A_OUTSIDE), ((49, 2048, 512), B_OUTSIDE)], ids=str
)
def test_the_smaller_operand_stays_in_the_cache(shape: tuple[int, int, int], order: str) -> None:
    workload = GemmWorkload(*shape)
    chosen = min(
        IMPLEMENTATION.configs(workload, AVX512, 1),
        key=lambda c: IMPLEMENTATION.estimate(workload, c, AVX512, 1).seconds,
    )
    assert chosen.loop_order == order


def test_workspace_is_packed_blocks_and_partial_sums() -> None:
    workload = GemmWorkload(64, 64, 100, batch=2)
    in_place = config((1, LANES), layout=IN_PLACE)
    assert model.workspace_bytes(workload, in_place, 2) == 0
    blocked = config((1, LANES), (16, 0), kc=50)
    assert model.workspace_bytes(workload, blocked, 2) == 4 * 2 * 16 * 50


def test_workspace_has_sums_where_c_is_of_another_type() -> None:
    """A block of rows, all columns, for each of the threads that divide the rows."""
    workload = GemmWorkload(64, 64, 100, types=Types.of("float16"))
    rows = config((1, LANES), (16, 0), kc=50, layout=IN_PLACE).with_fields(parallel="ic")
    assert model.workspace_bytes(workload, rows, 2) == 4 * 2 * 16 * 64
