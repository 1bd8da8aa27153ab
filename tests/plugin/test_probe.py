"""The probe: what its kernels do per loop iteration, sane figures, and the core file it writes."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from small_models import small_network, small_reference
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.cost_models.issue import macs_per_lane
from tvm_blislike.errors import TargetError
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.types import BYTES, MASKED, WORDS, Types
from tvm_blislike.probe import (
    ProbeResult,
    builders,
    kernels,
    measure_peak_gflops,
    measure_peak_gops,
    probe,
)
from tvm_blislike.probe.compute_kernels import CHAIN_PAIRS, FMA_ROUNDS, USES
from tvm_blislike.probe.products import product_function
from tvm_blislike.probe.rounds import LEAST_ROUNDS
from tvm_blislike.probe.steps import MEMORY, memory_bytes_of, steps_of, working_sets
from tvm_blislike.tvm_seams import machine_code

NATIVE = native_core()
FMA = {"avx512": "vfmadd231ps", "avx2": "vfmadd231ps", "neon": "fmla"}
# A jump back to the label that begins the loop, with nothing but a counter beside it.
LOOP_CONTROL = {
    *("decl", "decq", "subl", "subq", "addl", "addq", "cmpl", "cmpq", "movslq", "jne"),
    *("sub", "subs", "add", "cmp", "b.ne", "cbnz", "jmp"),
}


def innermost_loops(assembly: str) -> list[list[str]]:
    """Return the instructions of each loop that has no label inside."""
    lines = [re.split(r"#|//", line)[0].strip() for line in assembly.splitlines()]
    lines = [line for line in lines if line and not re.match(r"\.(?!L\w*:)", line)]
    loops, label, start = [], "", 0
    for index, line in enumerate(lines):
        if line.endswith(":"):
            label, start = line[:-1], index + 1
        elif re.match(r"(j|b\.|cbn?z|tbn?z)", line) and line.split()[-1] == label:
            loops.append(lines[start : index + 1])
    return loops


def loop_with(core: Core, kernel: str, wanted: str) -> list[str]:
    """Return the innermost loop of a kernel that uses the instruction `wanted` most."""
    return max(loops_of(core, kernel), key=lambda loop: count(loop, wanted))


def loops_of(core: Core, kernel: str) -> list[list[str]]:
    """Return the innermost loops of a kernel."""
    module = tvm.IRModule({"main": kernels.functions(core)[kernel]})
    library = tvm.compile(module, tvm.target.Target(core.target_config()))
    return innermost_loops(library.mod.inspect_source("asm"))


def count(loop: list[str], wanted: str) -> int:
    """Count the instructions of a loop that match a pattern."""
    return sum(bool(re.fullmatch(wanted, line.split()[0])) for line in loop)


@pytest.mark.parametrize("name", ["native", "skylake-avx512", "haswell", "cortex-a72"])
def test_peak_loop_is_nothing_but_fmas_on_registers(name: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    loop = loop_with(core, "fma", FMA[core.isa.name])
    fmas = [line for line in loop if line.split()[0] == FMA[core.isa.name]]
    accumulators = Counter(line.split(",")[-1 if core.isa.name != "neon" else 0] for line in fmas)
    assert len(accumulators) == core.vector_registers * 3 // 4
    assert len(set(accumulators.values())) == 1
    assert len(accumulators) >= core.fma_latency * core.fma_per_cycle
    assert not any("(" in line or "[" in line for line in loop)
    assert {line.split()[0] for line in loop} <= {FMA[core.isa.name], *LOOP_CONTROL}
    assert len(loop) - len(fmas) <= 0.1 * len(fmas)


@pytest.mark.parametrize(
    "name, types",
    [
        *(("haswell", MASKED), ("zen1", MASKED), ("zen3", MASKED), ("x86-64-v3", MASKED)),
        *(("haswell", WORDS), ("zen3", WORDS), ("skylake-avx512", WORDS), ("zen4", BYTES)),
    ],
    ids=str,
)
def test_products_keep_their_sums_in_registers(name: str, types: Types) -> None:
    core = Core.named(name)
    module = tvm.IRModule({"main": product_function(kernels_for(core, types)[0])[0]})
    library = tvm.compile(module, tvm.target.Target(core.target_config()))
    text = library.mod.inspect_source("asm")
    loop = max(machine_code.innermost_loops(text), key=lambda loop: sum(i.is_fma for i in loop))
    found = machine_code.count(loop)
    assert found.fmas and not found.spills


@pytest.mark.parametrize("name", ["native", "haswell", "cortex-a72"])
def test_clock_loop_is_one_chain(name: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    xor = "eor" if core.isa.name == "neon" else "xorl"
    add = "add" if core.isa.name == "neon" else "addl"
    loop = loop_with(core, "chain", xor)
    links = [line.split()[0] for line in loop if line.split()[0] in (add, xor)]
    chain = [pair for pair in zip(links[::2], links[1::2], strict=False) if pair == (add, xor)]
    assert len(chain) >= CHAIN_PAIRS
    assert len(loop) - 2 * len(chain) <= 4
    assert not any("(" in line or "[" in line for line in loop)


@pytest.mark.parametrize("name", ["native", "haswell", "cortex-a72"])
@pytest.mark.parametrize("kernel", ["read", "stream"])
def test_read_loops_load_every_vector_and_store_none(name: str, kernel: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    loop = max(loops_of(core, kernel), key=_loads)
    assert _loads(loop) == builders.BLOCK_VECTORS
    assert not any(re.match(r"st[pr]\b|v?mov\w+\s+%[xyz]mm\d+, .*\(", line) for line in loop)
    if kernel == "stream":
        assert count(loop, FMA[core.isa.name]) == builders.BLOCK_VECTORS


@pytest.mark.parametrize("name", ["native", "haswell", "cortex-a72"])
@pytest.mark.parametrize("kind", ["elements", "vectors"])
def test_loads_beside_fmas_are_used_as_often_as_said(name: str, kind: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    loop = loop_with(core, f"fma_{kind}", FMA[core.isa.name])
    assert count(loop, FMA[core.isa.name]) == USES * builders.BLOCK_VECTORS
    if core.isa.name != "neon":  # LLVM joins elements there: lanes of a vector are factors as well
        wanted = "vbroadcastss" if kind == "elements" else r"vmov[au]\w+"
        assert count(loop, wanted) == builders.BLOCK_VECTORS
    assert not any(re.match(r"st[pr]\b", line) for line in loop)


@pytest.mark.parametrize("name", ["native", "haswell", "cortex-a72"])
def test_walks_load_single_elements(name: str) -> None:
    """A gather of several would measure that instruction."""
    core = NATIVE if name == "native" else Core.named(name)
    for kernel in ("walk", "walks"):
        loop = max(loops_of(core, kernel), key=lambda loop: count(loop, "imull|mul|madd"))
        assert count(loop, "imull|mul|madd") >= 1
        assert not count(loop, r"v.*gather.*|ld1")


def _loads(loop: list[str]) -> int:
    """Count vector loads; `ldp` makes two."""
    counts = {r"ldp\s+q": 2, r"ldr\s+q": 1, r"v\w+\s+(\$\d+, )?-?\w*\([^)]*\), %[xyz]mm": 1}
    return sum(n for line in loop for pattern, n in counts.items() if re.match(pattern, line))


def tensor(values: np.ndarray) -> tvm.runtime.Tensor:
    """The bits of an array as a tensor of the kernels."""
    return tvm.runtime.tensor(np.ascontiguousarray(values).view("int32"))


def test_kernels_compute_what_they_say() -> None:
    compiled, lanes = kernels.kernels(NATIVE), NATIVE.lanes("float32")
    sums, rows = kernels.accumulators(NATIVE), builders.BLOCK_VECTORS
    halves = np.full((1, sums, lanes), 0.5, "float32")
    nothing = tensor(np.zeros(rows * lanes, "float32"))

    state = tensor(halves)
    compiled["fma"](nothing, state, 1, 1, 10)
    assert (state.numpy().view("float32") == 0.5 + 0.25 * 10 * FMA_ROUNDS).all()

    start = np.zeros((1, sums, lanes), "int32")
    start[0, :3, 0] = 1, 5, 9
    state = tvm.runtime.tensor(start)
    compiled["chain"](nothing, state, 1, 1, 2)
    value = 1
    for _ in range(2 * CHAIN_PAIRS):
        value = (value + 5) ^ 9
    assert state.numpy()[0, 0, 0] == value

    numbers = np.random.default_rng(1).integers(0, 1 << 30, (3, rows, lanes), "int32")
    state = tvm.runtime.tensor(np.zeros((1, sums, lanes), "int32"))
    compiled["read"](tvm.runtime.tensor(numbers.reshape(-1)), state, 1, 3, 2)
    joined = np.bitwise_or.reduce(numbers.reshape(-1, sums, lanes))
    assert (state.numpy()[0] == joined).all()

    floats = np.random.default_rng(1).integers(0, 8, (3, rows, lanes)).astype("float32")
    state = tensor(halves)
    compiled["stream"](tensor(floats.reshape(-1)), state, 1, 3, 2)
    total = 0.5 + 2 * 0.5 * floats.reshape(-1, sums, lanes).sum(axis=0)
    assert (state.numpy().view("float32")[0] == total).all()

    for kind in ("elements", "vectors"):
        used = floats.reshape(3, rows, lanes)
        if kind == "elements":
            used = np.repeat(floats.reshape(3, -1)[:, :rows, None], lanes, axis=2)
        by_load = used.reshape(-1, sums // USES, lanes).sum(axis=0)
        state = tensor(halves)
        compiled[f"fma_{kind}"](tensor(floats.reshape(-1)), state, 1, 3, 1)
        total = 0.5 + 0.5 * np.repeat(by_load, USES, axis=0)
        assert (state.numpy().view("float32")[0] == total).all()

    data = tensor(np.zeros((3, rows, lanes), "float32").reshape(-1))
    compiled["write"](data, state, 1, 2, 1)
    written = data.numpy().view("float32").reshape(3, rows, lanes)
    assert (written[:2] == 1).all() and (written[2] == 0).all()

    state = tvm.runtime.tensor(np.zeros((2, sums, lanes), "int32"))
    compiled["fork"](nothing, state, 2, 1, 7)
    assert (state.numpy()[:, 0] == 7).all() and (state.numpy()[:, 1:] == 0).all()


def test_walks_stay_among_their_lines_and_reach_most() -> None:
    compiled, lanes = kernels.kernels(NATIVE), NATIVE.lanes("float32")
    lines, words = 64, NATIVE.line_bytes // 4
    for kernel in ("walk", "walks"):
        seen = 0
        # Each line has a bit of its own in one of two passes: what was joined tells who was read.
        for half in range(0, lines, 32):
            data = np.zeros((lines, words), "int32")
            data[half : half + 32, 0] = (1 << np.arange(32, dtype="uint32")).view("int32")
            data[:, 1:] = -1  # never read
            found = 0
            for steps in range(1, 200):
                state = np.full((1, kernels.accumulators(NATIVE), lanes), 0, "int32")
                state[0, 0, 0] = steps * 7919
                held = tvm.runtime.tensor(state)
                compiled[kernel](tvm.runtime.tensor(data.reshape(-1)), held, 1, lines, 1)
                found |= int(held.numpy()[0, 0, 1]) & 0xFFFFFFFF
            seen += bin(found).count("1")
        assert seen > lines * 3 // 4


def test_peak_is_measured_quickly_and_sane() -> None:
    first = measure_peak_gflops(NATIVE, 1)
    started = time.perf_counter()
    second = measure_peak_gflops(NATIVE, 1)
    assert time.perf_counter() - started < 1.0  # about 10 ms on an idle machine
    assert all(1 < peak < 10_000 for peak in (first, second))


def test_peaks_of_other_products_are_theirs() -> None:
    def best(*which: Any) -> float:
        # Other tests take CPUs from some of the runs, which makes their peaks lower, never higher.
        return max(measure_peak_gops(NATIVE, *which) for _ in range(4))

    types = quantized_types(NATIVE)
    plain, *found = best(), *(best(types, threads) for threads in (1, 2))
    expected = macs_per_lane(NATIVE, types) * plain
    assert all(0.4 * expected < peak < 3 * expected for peak in found), (expected, found)
    wide = best(Types.of("int32"))  # no micro-kernel
    assert 0.3 < wide / plain < 3


def test_foreign_cores_are_refused() -> None:
    foreign = "cortex-a72" if NATIVE.isa.name != "neon" else "haswell"
    with pytest.raises(TargetError, match="cannot run here"):
        measure_peak_gflops(Core.named(foreign), 1)
    with pytest.raises(TargetError, match="cannot run here"):
        measure_peak_gops(Core.named(foreign), quantized_types(Core.named(foreign)))
    with pytest.raises(TargetError, match="cannot run here"):
        probe(Core.named(foreign))


@pytest.fixture(scope="module")
def measured() -> ProbeResult:
    """One probe of this machine."""
    seen: list[float] = []
    result = probe(NATIVE, quick=True, tick=seen.append)
    assert len(seen) >= LEAST_ROUNDS and seen == sorted(seen)
    return result


def test_every_level_is_measured(measured: ProbeResult) -> None:
    levels = [f"L{cache.level}" for cache in NATIVE.caches]
    assert list(measured.bandwidth_gb_per_s) == [*levels, MEMORY]
    assert MEMORY in measured.bandwidth_gb_per_s_all
    speeds = (*measured.bandwidth_gb_per_s.values(), *measured.bandwidth_gb_per_s_all.values())
    assert all(0.1 < speed < 10_000 for speed in speeds)
    assert 1 < measured.peak_gflops < 10_000
    assert 1 < measured.peak_gflops_all < 100_000
    assert 0.1 < measured.ghz < 10
    halves, core = [n / 2 for n in range(1, 13)], measured.to_core()
    assert core.fma_per_cycle in halves
    assert core.loads_per_cycle in halves and core.stores_per_cycle in halves
    assert 0 <= core.element_load_cycles < 10 and 0 <= core.vector_load_cycles < 10
    assert 1 <= core.lines_in_flight < 1000
    assert 0 < core.fork_join_us < 10_000


def test_probed_core_holds_what_was_measured(measured: ProbeResult, tmp_path: Path) -> None:
    core = measured.to_core()
    assert core.name.startswith("probed-")
    assert core.peak_gflops() == pytest.approx(measured.peak_gflops, rel=1e-2)
    alone, together = (
        each[MEMORY] for each in (measured.bandwidth_gb_per_s, measured.bandwidth_gb_per_s_all)
    )
    assert core.memory_core_gb_per_s == pytest.approx(alone, rel=1e-2)
    # All threads have no less than one of them alone, whatever a busy machine measured.
    assert core.memory_gb_per_s == pytest.approx(max(alone, together), rel=1e-2)
    for cache, described in zip(core.caches, NATIVE.caches, strict=True):
        speed = measured.bandwidth_gb_per_s[f"L{cache.level}"]
        assert cache.bytes_per_cycle * core.ghz == pytest.approx(speed, rel=1e-2)
        facts = {"bytes_per_cycle": 1.0, "all_bytes_per_cycle": None, "kept_of_half": 1.0}
        alike = (dataclasses.replace(c, **facts) for c in (cache, described))
        assert len(set(alike)) == 1
    settled = ("clock unknown", "FMA per cycle assumed", "memory bandwidth assumed")
    assert not [note for note in core.notes if any(phrase in note for phrase in settled)]
    assert [note for note in core.notes if "measured: FMA peak" in note]
    (tmp_path / "core.toml").write_text(core.to_toml())
    assert Core.from_toml(tmp_path / "core.toml") == core


def test_every_assumption_that_probing_settles_is_one_of_native() -> None:
    from tvm_blislike.hardware.machine import Machine
    from tvm_blislike.hardware.native import native_core
    from tvm_blislike.hardware.probed import SETTLED

    flags = {"avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    bare = native_core(Machine("Linux", "x86_64", frozenset(flags), "GenuineIntel"))
    for phrase in SETTLED:
        assert [note for note in bare.notes if phrase in note], phrase


def test_working_sets_fit_their_level_and_no_smaller_one() -> None:
    for core in (NATIVE, Core.named("haswell"), Core.named("cortex-a72"), Core.named("zen3")):
        sizes = working_sets(core)
        for cache in core.caches:
            size = sizes[f"L{cache.level}"]
            before = core.cache(cache.level - 1)
            assert size <= cache.bytes // 2
            assert before is None or size > before.bytes
        last = core.caches[-1].bytes
        assert memory_bytes_of(core, 1 << 40) >= min(4 * last, 1 << 30)
        assert memory_bytes_of(core, 1 << 26) == 1 << 24


@pytest.mark.parametrize("name", ["sapphirerapids", "zen3", "haswell", "cortex-a72"])
def test_pieces_of_all_threads_leave_the_level_before(name: str) -> None:
    core = Core.named(name)
    for threads in (2, core.cores):
        for step_name, step in steps_of(core, threads, 1 << 30).items():
            if not step_name.endswith(" all") or "stream L" not in step_name:
                continue
            cache = core.cache(int(step_name[len("stream L")]))
            before = core.cache(cache.level - 1).bytes
            piece = step.work / threads
            assert piece > before * 0.99
            held = before if cache.policy in ("victim", "exclusive") else 0
            assert piece <= cache.bytes / min(threads, cache.shared_by) + held


def test_only_a_guest_reads_half_of_what_others_may_use() -> None:
    machine = Core.named("zen3")
    guest = dataclasses.replace(machine, is_virtual=True)
    half = steps_of(guest, 2, 128 << 20)["half L3"]
    assert half.work == pytest.approx(guest.caches[-1].bytes // 2, rel=0.01)
    # Where there is not so much memory to read, or nobody else, there is nothing to find out.
    assert "half L3" not in steps_of(guest, 2, 16 << 20)
    assert "half L3" not in steps_of(machine, 2, 128 << 20)


def test_file_of_the_command_is_a_target(tmp_path: Path, image: np.ndarray) -> None:
    path = tmp_path / "core.toml"
    result = CliRunner().invoke(app, ["probe", "--quick", "-o", str(path), "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    core = Core.from_toml(path)
    assert data["core"]["name"] == core.name
    assert data["peak_gflops"] == pytest.approx(core.peak_gflops(), rel=1e-2)
    assert set(data["bandwidth_gb_per_s"]) >= {"L1", "memory"}

    compiled = tvm_blislike.compile(small_network(), target=path, threads=1)
    assert compiled.core == core.name
    scores = compiled.run({"image": image})["scores"]
    assert np.allclose(scores, small_reference(image), rtol=1e-5, atol=1e-5)


def test_command_prints_a_table_and_a_core_file() -> None:
    result = CliRunner().invoke(app, ["probe", "--quick"])
    assert result.exit_code == 0, result.output
    for text in ("FMA peak", "L1 read bandwidth", "memory read bandwidth", "[[caches]]"):
        assert text in result.stdout
