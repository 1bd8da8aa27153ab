"""Real runs of llvm-mca, which the tests get themselves where it is missing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from debian import ROOT, offer_llvm_mca
from small_models import two_convolutions
from typer.testing import CliRunner

from tvm_blislike.cli.app import app
from tvm_blislike.hardware import Core
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.inspect.mca import speed
from tvm_blislike.microkernels import get_kernel

RESULTS = ROOT / "benchmarks" / "results" / "arm_mca.txt"
# Of each core, data type and view, counted from the best.
PLACES = (0, 1, 30)


@pytest.fixture(autouse=True, scope="module")
def tool() -> None:
    offer_llvm_mca()


def _figures() -> Iterator[tuple[str, str, str, float, float, float]]:
    """Yield (core, view, micro-kernel, cycles, share of the FMA peak, cycles by llvm-mca)."""
    core, seen = "", Counter()
    for line in RESULTS.read_text().splitlines():
        if heading := re.match(r"([a-z0-9-]+): (in|out of) order", line):
            core, seen = heading[1], Counter()
        elif line.startswith("neon_f"):
            name, view, cycles, share, simulated, *_ = line.split()
            kind = get_kernel(name).types.a, view
            if seen[kind] in PLACES:
                yield core, view, name, float(cycles), float(share), float(simulated)
            seen[kind] += 1


@pytest.mark.parametrize("figure", list(_figures()), ids=lambda figure: "-".join(figure[:3]))
def test_figures_on_file_can_be_had_again(figure: tuple) -> None:
    name, view, kernel, cycles, share, simulated = figure
    core, microkernel = Core.named(name), get_kernel(kernel)
    found = speed(k_loops([microkernel], core, view)[kernel], core)
    steps = found.counts.fmas / (microkernel.mr * microkernel.vectors)
    assert found.cycles / steps == pytest.approx(cycles, rel=0.03)
    assert found.utilisation == pytest.approx(share, rel=0.03)
    # What LLVM's models of cores that issue in order say differs from version to version.
    if not core.in_order:
        assert found.mca_cycles / steps == pytest.approx(simulated, rel=0.03)


@pytest.mark.parametrize("target", ["cortex-a72", "cortex-a53", "skylake-avx512", "haswell"])
def test_explain_counts_cycles(target: str, tmp_path: Path) -> None:
    onnx.save(two_convolutions(), tmp_path / "net.onnx")
    arguments = ["explain", str(tmp_path / "net.onnx"), "--target", target, "--asm", "--json"]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    loops = json.loads(printed.stdout)
    assert loops
    for loop in loops:
        assert loop["speed"]["mca_cycles"] > 1 and 0.1 < loop["speed"]["utilisation"] <= 1


# Core, micro-kernel, how A lies, least share of the limit of its instruction. Without dot products
# the limit is twice the multiply-adds of fp32: 0.9 of it is 1.8 times fp32 at its peak.
_DOT, _PAIRS = ("cortex-a76", "neoverse-n1", "neoverse-v1"), ("cortex-a57", "cortex-a72")
_PANELS, _IN_PLACE = ("8x8", "8x12", "12x8", "6x16", "4x24", "4x28"), ("8x8", "9x8", "6x16", "4x24")
_TILES = ("8x12", "12x8", "6x16", "4x24")
INTEGERS = [
    *((core, f"neon_s8s32_{b}x4", "panel", 0.97) for core in _DOT for b in _PANELS),
    *((core, f"neon_s8s32_{b}x4", "rows", 0.97) for core in _DOT for b in _IN_PLACE),
    *(("neoverse-v1", f"neon_s8s32_{b}x8", "panel", 0.95) for b in _TILES),
    # In place rows have to be joined, by the units that multiply.
    *(("neoverse-v1", f"neon_s8s32_{b}x8", "rows", 0.8) for b in ("8x12", "6x16", "4x24")),
    *((core, f"neon_s8s32_{b}x2", "panel", 0.9) for core in _PAIRS for b in ("3x24", "2x32")),
    *((core, f"neon_s8s32_{b}x2", "rows", 0.9) for core in _PAIRS for b in ("3x24", "2x32")),
]


@pytest.mark.parametrize("name, kernel, view, share", INTEGERS, ids=str)
def test_integer_k_loops_reach_the_limit(name: str, kernel: str, view: str, share: float) -> None:
    core, microkernel = Core.named(name), get_kernel(kernel)
    found = speed(k_loops([microkernel], core, view)[kernel], core)
    assert share <= found.utilisation <= 1
