"""Templates as MetaSchedule's space: tuning, databases, boards, and traces that replay."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from loopback import KEY, Loopback
from small_models import two_convolutions
from tvm import relax, s_tir, te, topi
from tvm.s_tir import meta_schedule as ms

import tvm_blislike
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.marks import SCHEDULED, root_annotations
from tvm_blislike.model.workload import Conv2dWorkload, Conv3dWorkload, GemmWorkload, Workload
from tvm_blislike.onnx import frontend
from tvm_blislike.passes.plain_products import product_of
from tvm_blislike.passes.schedule import apply_template
from tvm_blislike.schedules import all_implementations, get_implementation
from tvm_blislike.tuning import kernels, operands
from tvm_blislike.tuning.kernels import CandidateGroup

NATIVE = native_core()
ARM = Core.named("cortex-a72")
TARGET = tvm.target.Target(NATIVE.target_config(1))
GEMM = GemmWorkload(50, 70, 130)
CONV = Conv2dWorkload(1, 32, 13, 11, 40, 3, 3, padding=(1, 1, 1, 1))
# Edges in every direction, padding, strides, several blocks of k, a ring.
WORKLOADS = (
    GEMM,
    GemmWorkload(30, 40, 3000),
    GemmWorkload(20, 24, 16, 2, constant_b=False),
    CONV,
    Conv2dWorkload(1, 3, 15, 15, 24, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)),
    Conv2dWorkload(1, 24, 9, 11, 24, 3, 3, padding=(1, 1, 1, 1), groups=24),
    Conv2dWorkload(1, 32, 9, 11, 32, 3, 3, padding=(1, 1, 1, 1), groups=16),
    Conv2dWorkload(1, 32, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1)),
    Conv2dWorkload(1, 64, 9, 9, 64, 1, 1),
    Conv3dWorkload(
        4, 24, 9, 11, 24, 3, 3, padding=(1, 1, 1, 1), groups=24, depth_taps=3, depth_padding=(1, 1)
    ),
)
TRIALS = {"max_trials_global": 4, "num_trials_per_iter": 4, "cost_model": "random"}
# The default replays hundreds of traces for each generation of a search.
EVOLUTION = {"population_size": 8, "init_min_unmeasured": 4, "genetic_num_iters": 1}
STRATEGIES = {
    "evolutionary": lambda: ms.search_strategy.EvolutionarySearch(**EVOLUTION),
    "replay-func": ms.search_strategy.ReplayFunc,
}


@pytest.fixture(autouse=True)
def _unused_loggers() -> Iterator[None]:
    """Undo what a tuning sets up: pytest adds to such loggers, the next tuning stumbles."""
    yield
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    logger.handlers.clear()
    logger.propagate = True


def module(workload: Workload, config: Any, core: Core = NATIVE) -> tvm.IRModule:
    """Return the PrimFunc of a configuration as a module of MetaSchedule's."""
    func = kernels.functions(CandidateGroup(workload, (config,), core, 1), 0, config)["candidate_0"]
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def builder() -> Any:
    return tvm_blislike.meta_schedule.builder(max_workers=2)


def error_of(lib: Any, workload: Workload, config: Any) -> float:
    """Return the largest difference of a library's `main` from the plain definition."""
    data, weights = operands.operands(workload)
    packed = get_implementation(config.implementation).pack(workload, config, weights)
    out = np.full(operands.result_shape(workload, config), np.nan, "float32")
    arguments = [operands.in_layout(workload, config.data_layout, data), packed, out]
    tensors = [tvm.runtime.tensor(value) for value in arguments]
    lib["main"](*tensors)
    found = operands.from_layout(workload, config, tensors[-1].numpy())
    return float(np.abs(found - operands.result(workload, data, weights)).max())


def tensorized(mod: tvm.IRModule) -> bool:
    """Whether a module's `main` has blocks of one micro-kernel call."""
    return "T.Broadcast" in mod.script() and SCHEDULED in root_annotations(mod["main"])


CASES = [
    (workload, implementation.name, core)
    for core in (NATIVE, ARM)
    for workload in WORKLOADS
    for implementation in all_implementations()
    if implementation.kind == workload.kind and not implementation.applies(workload, core)
]


@pytest.mark.parametrize(
    ("workload", "name", "core"), CASES, ids=[f"{w}-{n}-{c.name}" for w, n, c in CASES]
)
def test_traces_replay_from_a_database(
    workload: Workload, name: str, core: Core, tmp_path: Path
) -> None:
    implementation = get_implementation(name)
    # What never pays for so small a product is still in the space.
    offered = list(implementation.configs(workload, core, 1))
    offered = offered or list(implementation.space(workload, core, 1))
    for number, config in enumerate({offered[0], offered[len(offered) // 2], offered[-1]}):
        mod = module(workload, config, core)
        sch = s_tir.Schedule(mod)
        apply_template(sch, workload, config, core, 1)
        target = tvm.target.Target(core.target_config(1))
        written = ms.database.JSONDatabase(work_dir=str(tmp_path))
        written.commit_tuning_record(
            ms.database.TuningRecord(
                sch.trace,
                written.commit_workload(mod),
                [1.0],
                target,
                ms.arg_info.ArgInfo.from_prim_func(mod["main"]),
            )
        )
        read = ms.database.JSONDatabase(work_dir=str(tmp_path))
        again = read.query_schedule(mod, target, "main")
        tvm.ir.assert_structural_equal(again.mod, sch.mod)
        assert len(read) == number + 1


def test_every_implementation_is_replayed() -> None:
    assert {name for _, name, _ in CASES} == {i.name for i in all_implementations()}


@pytest.mark.parametrize(
    ("workload", "strategy"),
    [(GEMM, "evolutionary"), (CONV, "replay-func")],
    ids=str,
)
def test_tune_tir(workload: Workload, strategy: str, tmp_path: Path) -> None:
    config = Strategy(NATIVE, 1).choose(workload).config
    mod = module(workload, config)
    space = tvm_blislike.meta_schedule.space()
    ms.tune_tir(
        mod,
        TARGET,
        str(tmp_path),
        space=space,
        strategy=STRATEGIES[strategy](),
        builder=builder(),
        **TRIALS,
    )
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    assert all(float(s) < 1 for r in database.get_all_tuning_records() for s in r.run_secs)
    best = ms.tir_integration.compile_tir(database, mod, TARGET)
    assert tensorized(best.mod)
    assert error_of(tvm.compile(best.mod, TARGET), workload, config) < 1e-4


def test_the_space_differs_in_nothing_that_the_operands_show() -> None:
    strategy = Strategy(NATIVE, 1)
    for workload in (GEMM, CONV):
        config = strategy.choose(workload).config
        found = list(tvm_blislike.meta_schedule.alternatives(workload, config, strategy))
        assert found[0] == config and len(set(found)) == len(found) > 1
        for other in found:
            mod = module(workload, config)
            sch = s_tir.Schedule(mod)
            apply_template(sch, workload, other, NATIVE, 1)
            assert error_of(tvm.compile(sch.mod, TARGET), workload, config) < 1e-4


def test_other_functions_get_the_default_rule(tmp_path: Path) -> None:
    a = te.placeholder((37, 41), name="a")
    doubled = te.compute((37, 41), lambda i, j: a[i, j] * 2.0, name="doubled")
    mod = tvm.IRModule({"main": te.create_prim_func([a, doubled])})
    space = tvm_blislike.meta_schedule.space()
    ms.tune_tir(
        mod,
        TARGET,
        str(tmp_path),
        space=space,
        strategy="replay-trace",
        builder=builder(),
        **TRIALS,
    )
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    best = ms.tir_integration.compile_tir(database, mod, TARGET)
    lib = tvm.compile(best.mod, TARGET)
    assert f"<{NATIVE.lanes('float32')} x float>" in lib.mod.inspect_source("ll")
    values = np.random.default_rng(3).standard_normal((37, 41)).astype("float32")
    out = tvm.runtime.tensor(np.zeros_like(values))
    lib["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), 2 * values)


@pytest.mark.parametrize(("a", "b"), [((5, 60), (60, 70)), ((3, 5, 60), (60, 70))])
def test_plain_products_are_replaced(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = te.placeholder(a, name="left"), te.placeholder(b, name="right")
    k = te.reduce_axis((0, b[0]), name="k")
    out = te.compute(
        (*a[:-1], b[1]), lambda *at: te.sum(left[(*at[:-1], k)] * right[k, at[-1]], axis=k)
    )
    mod = tvm.IRModule({"main": te.create_prim_func([left, right, out])})
    schedules = list(tvm_blislike.meta_schedule.schedules(mod, Strategy(NATIVE, 1)))
    assert len(schedules) > 1
    lib = tvm.compile(schedules[0].mod, TARGET)
    rng = np.random.default_rng(6)
    values = [rng.standard_normal(shape).astype("float32") for shape in (a, b)]
    result = tvm.runtime.tensor(np.zeros((*a[:-1], b[-1]), "float32"))
    lib["main"](*map(tvm.runtime.tensor, values), result)
    np.testing.assert_allclose(result.numpy(), values[0] @ values[1], rtol=1e-4, atol=1e-4)


def test_other_products_are_not_taken_for_plain_ones() -> None:
    left, right = te.placeholder((6, 6), name="left"), te.placeholder((6, 6), name="right")
    transposed = topi.matmul(left, right, False, True)
    assert product_of(te.create_prim_func([left, right, transposed])) is None
    assert product_of(te.create_prim_func([left, right, topi.add(left, right)])) is None
    plain = te.create_prim_func([left, right, topi.matmul(left, right)])
    assert product_of(plain) == GemmWorkload(6, 6, 6, constant_b=False)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tvm.IRModule]:
    """A database of a model of two convolutions, and the module that was tuned."""
    folder = tmp_path_factory.mktemp("database")
    prepared = tvm_blislike.meta_schedule.prepare(model(), TARGET)
    space = tvm_blislike.meta_schedule.space()
    ms.relax_integration.tune_relax(
        prepared,
        {},
        TARGET,
        str(folder),
        space=space,
        strategy="replay-trace",
        builder=builder(),
        **{**TRIALS, "max_trials_per_task": 4, "max_trials_global": 12},
    )
    return folder, prepared


def model() -> tvm.IRModule:
    return frontend.load(two_convolutions()).module


def check(executable: Any) -> None:
    """Compare a compiled `two_convolutions` with ONNX Runtime."""
    ort = pytest.importorskip("onnxruntime")
    image = np.random.default_rng(5).standard_normal((1, 3, 15, 17)).astype("float32")
    session = ort.InferenceSession(two_convolutions().SerializeToString())
    (expected,) = session.run(None, {"image": image})
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_tune_relax_and_compile_relax(tuned: tuple[Path, tvm.IRModule]) -> None:
    folder, prepared = tuned
    database = ms.database.JSONDatabase(work_dir=str(folder))
    tasks = ms.relax_integration.extract_tasks(prepared, TARGET, {})
    mods = [task.dispatched[0] for task in tasks]
    scheduled = [database.query_ir_module(mod, TARGET, "main") for mod in mods]
    assert all(scheduled) and sum(map(tensorized, scheduled)) == 2
    check(ms.relax_integration.compile_relax(database, prepared, TARGET, {}))


def test_the_pipeline_follows_a_database(tuned: tuple[Path, tvm.IRModule]) -> None:
    pipeline = relax.get_pipeline("blislike")
    with ms.database.JSONDatabase(work_dir=str(tuned[0])):
        check(tvm.compile(model(), TARGET, relax_pipeline=pipeline))


def test_a_fresh_process_registers_what_a_database_calls(
    tuned: tuple[Path, tvm.IRModule],
) -> None:
    code = """
import sys
import tvm_blislike
from tvm.s_tir import meta_schedule as ms
tvm_blislike.meta_schedule.register_intrinsics(sys.argv[1])
assert len(ms.database.JSONDatabase(work_dir=sys.argv[1])) > 2
"""
    subprocess.run([sys.executable, "-c", code, str(tuned[0])], check=True)


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Loopback]:
    """A tracker with one board."""
    pytest.importorskip("tornado")
    made = Loopback(tmp_path)
    made.add(1)
    made.wait_for(1)
    yield made
    made.end()


def test_tuning_on_a_board(tracker: Loopback, tmp_path: Path) -> None:
    config = ms.runner.RPCConfig("127.0.0.1", tracker.port, KEY, session_timeout_sec=60)
    runner = ms.runner.RPCRunner(config, max_workers=1)
    mod = module(GEMM, Strategy(NATIVE, 1).choose(GEMM).config)
    space = tvm_blislike.meta_schedule.space()
    database = ms.tune_tir(
        mod,
        TARGET,
        str(tmp_path),
        space=space,
        strategy="replay-trace",
        builder=builder(),
        runner=runner,
        **TRIALS,
    )
    runner.pool.shutdown()
    seconds = [float(s) for r in database.get_all_tuning_records() for s in r.run_secs]
    assert seconds and max(seconds) < 1


def test_a_convolution_that_needs_prepare_is_warned_of() -> None:
    image, weights = te.placeholder((1, 8, 9, 9)), te.placeholder((4, 8, 3, 3))
    depthwise = te.placeholder((8, 1, 3, 3))
    for result, inputs in (
        (topi.nn.conv2d_nchw(image, weights, 1, 1, 1), [image, weights]),
        (topi.nn.depthwise_conv2d_nchw(image, depthwise, 1, 1, 1), [image, depthwise]),
    ):
        with pytest.warns(RuntimeWarning, match=r"prepare\(\) has not seen gets one schedule"):
            assert len(offered_for([*inputs, result])) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = topi.nn.pool2d(image, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "avg")
        assert len(offered_for([image, pool])) == 1
        square = te.placeholder((16, 16))
        assert len(offered_for([square, te.compute((16, 16), lambda *i: square(*i) + 1.0)])) == 1
        assert offered_for(_plain_product())


def offered_for(tensors: list[te.Tensor]) -> list[Any]:
    mod = tvm.IRModule({"main": te.create_prim_func(tensors)})
    return list(tvm_blislike.meta_schedule.schedules(mod, Strategy(NATIVE, 1)))


def _plain_product() -> list[te.Tensor]:
    a, b = te.placeholder((16, 24)), te.placeholder((24, 32))
    k = te.reduce_axis((0, 24))
    return [a, b, te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))]
