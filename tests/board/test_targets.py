"""Every kind of described ARM core: libraries linked here run on an emulated one like it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_board import Board
from small_models import small_network, small_reference

import tvm_blislike
from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.hardware import Core, described_cores

BOARDS = [core for core in described_cores() if core.isa.name == "neon" and "linux" in core.mtriple]
# What qemu 7.2 has, and what it takes for other cores by what they have beyond ARMv8.0; "max" has
# every extension.
QEMU = ("cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1")
LIKE = {(): "cortex-a72", ("dotprod", "fp16"): "cortex-a76"}


def _emulated(core: Core) -> str:
    return core.name if core.name in QEMU else LIKE.get(core.features, "max")


def _representatives() -> list[Core]:
    """Return a core of each kind that code differs for, and all that qemu has."""
    kinds = {}
    for core in BOARDS:
        own = core.name in QEMU and core.name
        kinds[own, core.features, core.in_order, core.fma_per_cycle] = core
    return list(kinds.values())


def test_boards_of_every_kind_are_listed() -> None:
    assert len(BOARDS) > 20 and len(_representatives()) >= 12
    assert {core.name for core in _representatives()} >= {*QEMU}


@pytest.mark.parametrize("core", _representatives(), ids=lambda core: core.name)
def test_runs_on_that_core(core: Core, board: Board, image: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", image)
    compiled = tvm_blislike.compile(small_network(), target=core, threads=1)
    bundle = compiled.bundle(tmp_path / "bundle")
    assert bundle.programs == ("blis_run", "blis_rpc")
    arguments = ("--input", f"image={tmp_path / 'image.npy'}", "--output", tmp_path / "out")
    emulated = replace(board, cpu=_emulated(core))
    emulated.run(bundle.folder / "blis_run", *arguments)
    found = np.load(tmp_path / "out" / "scores.npy")
    np.testing.assert_allclose(found, small_reference(image), rtol=1e-5, atol=1e-5)


def test_code_for_a_newer_core_does_not_run_on_an_older_one(board: Board, tmp_path: Path) -> None:
    """The emulator does tell cores apart: half precision that only newer ones have."""
    target, source = Core.named("neoverse-n1").target_config(), tmp_path / "half.c"
    source.write_text('int main() { __asm__ volatile("fadd v0.8h, v0.8h, v0.8h"); return 0; }')
    command = [*find_builder(target), "-mcpu=neoverse_n1", str(source)]
    run_tool([*command, "-o", str(tmp_path / "half")], "build half.c")
    assert replace(board, cpu="neoverse-n1").run(tmp_path / "half").returncode == 0
    done = replace(board, cpu="cortex-a53").run(tmp_path / "half", check=False)
    assert done.returncode < 0 or done.returncode > 128


def test_apple_library_is_mach_o(tmp_path: Path) -> None:
    compiled = tvm_blislike.compile(small_network(), target="apple-m1", threads=1)
    compiled.export(tmp_path / "net.dylib")
    head = (tmp_path / "net.dylib").read_bytes()[:16]
    # 64-bit Mach-O, ARM64, shared library.
    assert head[:4] == b"\xcf\xfa\xed\xfe"
    assert int.from_bytes(head[4:8], "little") == 0x0100000C
    assert int.from_bytes(head[12:16], "little") == 6


def test_a_given_compiler_links_too(board: Board, image: np.ndarray, tmp_path: Path) -> None:
    """Any command that takes a compiler's options: here that of zig, by --cc."""
    np.save(tmp_path / "image.npy", image)
    compiled = tvm_blislike.compile(small_network(), target="cortex-a72", threads=1)
    folder = tmp_path / "bundle"
    compiled.bundle(folder, cc=f"{sys.executable} -m ziglang cc -target aarch64-linux-gnu.2.28")
    arguments = ("--input", f"image={tmp_path / 'image.npy'}", "--output", tmp_path / "out")
    board.run(folder / "blis_run", *arguments)
    found = np.load(tmp_path / "out" / "scores.npy")
    np.testing.assert_allclose(found, small_reference(image), rtol=1e-5, atol=1e-5)


def test_cmake_builds_the_programs(board: Board, tmp_path: Path) -> None:
    """The shipped CMake file, as on a board, but with the compiler for it."""
    compiled = tvm_blislike.compile(small_network(), target="cortex-a72", threads=1)
    folder = compiled.bundle(tmp_path / "bundle").folder
    for program in ("blis_run", "blis_rpc"):
        (folder / program).unlink()
    wrapper = tmp_path / "cxx"
    wrapper.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target aarch64-linux-gnu.2.28 "$@"\n'
    )
    wrapper.chmod(0o755)
    configure = ["cmake", "-S", str(folder / "src"), "-B", str(tmp_path / "build")]
    configure += [f"-DCMAKE_CXX_COMPILER={wrapper}", "-DCMAKE_SYSTEM_NAME=Linux"]
    configure += ["-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    for step in (
        configure,
        ["cmake", "--build", str(tmp_path / "build")],
        ["cmake", "--install", str(tmp_path / "build")],
    ):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "ms" in board.run(folder / "blis_run").stdout
