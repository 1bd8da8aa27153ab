"""The probe: what its kernels do per loop iteration, sane figures, and the core file it writes."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tvm
from small_models import small_network, small_reference
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import TargetError
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.inspect import probe_kernels
from tvm_blislike.inspect.probe import ProbeResult, _working_sets, measure_peak_gflops, probe

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


def loop_with(core: Core, wanted: str) -> list[str]:
    """Return the innermost loop that uses the instruction `wanted` most."""
    library = tvm.compile(probe_kernels.module(core), tvm.target.Target(core.target_config()))
    loops = innermost_loops(library.mod.inspect_source("asm"))
    return max(loops, key=lambda loop: sum(line.split()[0] == wanted for line in loop))


@pytest.mark.parametrize("name", ["native", "skylake-avx512", "haswell", "cortex-a72"])
def test_peak_loop_is_nothing_but_fmas_on_registers(name: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    loop = loop_with(core, FMA[core.isa.name])
    fmas = [line for line in loop if line.split()[0] == FMA[core.isa.name]]
    accumulators = Counter(line.split(",")[-1 if core.isa.name != "neon" else 0] for line in fmas)
    assert len(accumulators) == core.vector_registers * 3 // 4
    assert len(set(accumulators.values())) == 1
    assert len(accumulators) >= core.fma_latency * core.fma_per_cycle
    assert not any("(" in line or "[" in line for line in loop)
    assert {line.split()[0] for line in loop} <= {FMA[core.isa.name], *LOOP_CONTROL}
    assert len(loop) - len(fmas) <= 0.1 * len(fmas)


@pytest.mark.parametrize("name", ["native", "haswell", "cortex-a72"])
def test_clock_loop_is_one_chain(name: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    xor = "eor" if core.isa.name == "neon" else "xorl"
    add = "add" if core.isa.name == "neon" else "addl"
    loop = loop_with(core, xor)
    links = [line.split()[0] for line in loop if line.split()[0] in (add, xor)]
    chain = [pair for pair in zip(links[::2], links[1::2], strict=False) if pair == (add, xor)]
    assert len(chain) >= probe_kernels.CHAIN_PAIRS
    assert len(loop) - 2 * len(chain) <= 4
    assert not any("(" in line or "[" in line for line in loop)


@pytest.mark.parametrize("name", ["native", "haswell", "cortex-a72"])
def test_read_loop_loads_every_vector_and_stores_none(name: str) -> None:
    core = NATIVE if name == "native" else Core.named(name)
    library = tvm.compile(probe_kernels.module(core), tvm.target.Target(core.target_config()))
    vectors = probe_kernels.READ_ROUNDS * probe_kernels.READ_ACCUMULATORS
    found = [loop for loop in innermost_loops(library.mod.inspect_source("asm")) if _loads(loop)]
    loop = max(found, key=_loads)
    assert _loads(loop) % vectors == 0
    assert not any(re.match(r"st[pr]\b|v?mov\w+\s+%[xyz]mm\d+, .*\(", line) for line in loop)


def _loads(loop: list[str]) -> int:
    """Count vector loads; `ldp` makes two."""
    counts = {r"ldp\s+q": 2, r"ldr\s+q": 1, r"v\w+\s+(\$\d+, )?-?\w*\([^)]*\), %[xyz]mm": 1}
    return sum(n for line in loop for pattern, n in counts.items() if re.match(pattern, line))


def test_kernels_compute_what_they_say() -> None:
    kernels = probe_kernels.kernels(NATIVE)
    lanes, rows = kernels.lanes, probe_kernels.READ_ROUNDS * probe_kernels.READ_ACCUMULATORS
    state = tvm.runtime.tensor(np.full((1, kernels.accumulators, lanes), 0.5, "float32"))
    kernels.fma(state, 1, 10)
    expected = 0.5 + 0.25 * 10 * probe_kernels.FMA_ROUNDS
    assert (state.numpy() == expected).all()

    chain = tvm.runtime.tensor(np.array([[[1, 5, 9]]], "int32"))
    kernels.chain(chain, 1, 2)
    value = 1
    for _ in range(2 * probe_kernels.CHAIN_PAIRS):
        value = (value + 5) ^ 9
    assert chain.numpy()[0, 0, 0] == value

    bits = np.zeros((3, rows, lanes), "int32")
    bits[[0, 1, 2, 2], [0, 9, 17, rows - 1], [0, 1, 2, lanes - 1]] = [1, 2, 4, 8]
    sums = tvm.runtime.tensor(np.zeros((1, probe_kernels.READ_ACCUMULATORS, lanes), "int32"))
    kernels.read(tvm.runtime.tensor(bits), sums, 1, 3, 2)
    assert (sums.numpy()[0] == np.bitwise_or.reduce(bits.reshape(-1, *sums.shape[1:]))).all()

    data = tvm.runtime.tensor(np.zeros((3, rows, lanes), "int32"))
    kernels.fill(data, 2)
    assert (data.numpy()[:2] == 1).all()
    assert (data.numpy()[2] == 0).all()
    assert kernels.block_bytes == bits[0].nbytes


def test_peak_is_measured_quickly_and_sane() -> None:
    first = measure_peak_gflops(NATIVE, 1)
    started = time.perf_counter()
    second = measure_peak_gflops(NATIVE, 1)
    assert time.perf_counter() - started < 1.0  # about 10 ms on an idle machine
    assert all(1 < peak < 10_000 for peak in (first, second))


def test_foreign_cores_are_refused() -> None:
    foreign = "cortex-a72" if NATIVE.isa.name != "neon" else "haswell"
    with pytest.raises(TargetError, match="cannot run here"):
        measure_peak_gflops(Core.named(foreign), 1)


@pytest.fixture(scope="module")
def measured() -> ProbeResult:
    """One probe of this machine."""
    seen: list[str] = []
    result = probe(NATIVE, seen.append)
    assert len(seen) >= 5
    return result


def test_every_level_is_measured(measured: ProbeResult) -> None:
    levels = [f"L{cache.level}" for cache in NATIVE.caches]
    assert list(measured.bandwidth_gb_per_s) == [*levels, "memory"]
    assert all(0.1 < speed < 10_000 for speed in measured.bandwidth_gb_per_s.values())
    assert 0.1 < measured.memory_gb_per_s_all < 10_000
    assert 1 < measured.peak_gflops < 10_000
    assert 1 < measured.peak_gflops_all < 100_000
    assert 0.1 < measured.ghz < 10
    assert measured.fma_per_cycle in (0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4)


def test_probed_core_holds_what_was_measured(measured: ProbeResult) -> None:
    core = measured.to_core()
    assert core.name.startswith("probed-")
    assert core.fma_per_cycle == measured.fma_per_cycle
    assert core.peak_gflops() == pytest.approx(measured.peak_gflops, rel=1e-2)
    assert core.memory_gb_per_s == pytest.approx(measured.memory_gb_per_s_all, rel=0.1)
    assert core.caches == NATIVE.caches
    settled = ("clock unknown", "FMA per cycle assumed", "memory bandwidth assumed")
    assert not [note for note in core.notes if any(phrase in note for phrase in settled)]
    assert [note for note in core.notes if "measured FMA peak" in note]


def test_every_assumption_that_probing_settles_is_one_of_native(measured: ProbeResult) -> None:
    from tvm_blislike.hardware.machine import Machine
    from tvm_blislike.hardware.native import native_core
    from tvm_blislike.inspect.probe import _SETTLED

    flags = {"avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    bare = native_core(Machine("Linux", "x86_64", frozenset(flags), "GenuineIntel"))
    described = dataclasses.replace(bare, memory_gb_per_s=bare.memory_gb_per_s or 1.0)
    for phrase in _SETTLED:
        assert [note for note in described.notes if phrase in note], phrase


def test_working_sets_fit_their_level_and_no_smaller_one() -> None:
    for core in (NATIVE, Core.named("haswell"), Core.named("cortex-a72"), Core.named("zen3")):
        sizes = _working_sets(core)
        for cache in core.caches:
            size = sizes[f"L{cache.level}"]
            before = core.cache(cache.level - 1)
            assert size <= cache.bytes // 2
            assert before is None or size > before.bytes
        assert sizes["memory"] <= 1 << 30


def test_file_of_the_command_is_a_target(tmp_path: Path, image: np.ndarray) -> None:
    path = tmp_path / "core.toml"
    result = CliRunner().invoke(app, ["probe", "-o", str(path), "--json"])
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
    result = CliRunner().invoke(app, ["probe"])
    assert result.exit_code == 0, result.output
    for text in ("FMA peak", "L1 read bandwidth", "memory read bandwidth", "[[caches]]"):
        assert text in result.stdout
