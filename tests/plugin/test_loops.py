"""The k loops of a compiled model, and how their cycles are found."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from small_models import two_convolutions

import tvm_blislike
from tvm_blislike.errors import ToolchainError, UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.inspect import in_order, mca
from tvm_blislike.inspect.loops import layer_loops
from tvm_blislike.tvm_seams.machine_code import Instruction, count, functions, instructions

FMA = Instruction("fmla", "v0.4s, v30.4s, v31.s[0]")


def independent(number: int) -> list[Instruction]:
    return [Instruction("fmla", f"v{i}.4s, v30.4s, v31.s[0]") for i in range(number)]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for llvm-mca that finds one cycle for each line it reads."""

    def install(version: int, name: str = "llvm-mca") -> None:
        path = tmp_path / name
        path.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && echo "Debian LLVM version {version}.1.0" && exit\n'
            'echo "Total Cycles:      $((200 * $(/usr/bin/wc -l)))"\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IEXEC)

    monkeypatch.setenv("PATH", str(tmp_path))
    mca.find_tool.cache_clear()
    yield install
    mca.find_tool.cache_clear()


@pytest.mark.parametrize("name", ["cortex-a72", "apple-m1"])
def test_every_layer_with_a_micro_kernel_has_a_loop(name: str, tool):
    tool(22)
    core = Core.named(name)
    limits = tvm_blislike.Constraints(only=("conv2d_direct",))
    model = tvm_blislike.compile(two_convolutions(), core, threads=2, constraints=limits)
    assembly = model.assembly()
    found = layer_loops(assembly, model.explain(), core)
    chosen = [layer.name for layer in model.explain().layers if layer.is_chosen]
    assert {entry.layer for entry in found} <= set(chosen)
    assert found
    for entry in found:
        counts = entry.speed.counts
        assert counts == count(list(entry.loop))
        assert counts.fmas >= 4
        # One cycle a line, the label included.
        assert entry.speed.cycles == entry.speed.mca_cycles == counts.instructions + 1
        started = counts.fmas / entry.speed.cycles
        assert entry.speed.utilisation == pytest.approx(started / core.fma_per_cycle)


def test_a_library_has_no_text():
    class Loaded:
        kind, imports = "relax.VMExecutable", ()

    model = tvm_blislike.CompiledModel.__new__(tvm_blislike.CompiledModel)
    model._executable = Loaded()
    with pytest.raises(UsageError, match="ONNX model"):
        model.assembly()


def test_missing_and_old_tools_are_named(tool):
    with pytest.raises(ToolchainError, match=r"llvm-mca(.|\n)*llvm-22"):
        mca.find_tool()
    tool(14)
    mca.find_tool.cache_clear()
    with pytest.raises(ToolchainError, match="19 or newer"):
        mca.find_tool()
    tool(19, "llvm-mca-19")
    mca.find_tool.cache_clear()
    assert mca.find_tool().endswith("llvm-mca-19")


@pytest.mark.parametrize(
    ("apple", "usual"),
    [
        ("fmla.4s\tv28, v9, v13[0]", "fmla v28.4s, v9.4s, v13.s[0]"),
        ("fmla.8h\tv0, v1, v2[7]", "fmla v0.8h, v1.8h, v2.h[7]"),
        ("ld1r.4s\t{ v3 }, [x9], #4", "ld1r { v3.4s }, [x9], #4"),
        ("st1.s\t{ v3 }[1], [x9]", "st1 { v3.s }[1], [x9]"),
        ("mov.16b\tv1, v2", "mov v1.16b, v2.16b"),
        ("b.ls\tLBB0_1", "b.ls LBB0_1"),
        ("ldp\tq0, q1, [x9, #16]", "ldp q0, q1, [x9, #16]"),
    ],
)
def test_apples_syntax_is_read_as_the_usual_one(apple: str, usual: str):
    (found,) = instructions(f"\t{apple}\n")
    assert str(found) == usual


def test_functions_of_mach_o_have_an_underscore_more():
    head = "\t.section\t__TEXT,__text,regular,pure_instructions\n"
    text = f"{head}_f:\nLfunc_begin0:\n\tret\nLBB0_1:\n\tnop\n___g:\n\tret\n"
    assert list(functions(text)) == ["f", "__g"]


def test_functions_are_told_apart():
    text = "f:\n\tret\n.LBB0_1:\n\tnop\ng_2:\n\tret\n"
    assert functions(text) == {"f": "f:\n\tret\n.LBB0_1:\n\tnop\n", "g_2": "g_2:\n\tret\n"}


@pytest.mark.parametrize("name", ["cortex-a53", "cortex-a55"])
def test_in_order_pipeline_by_hand(name: str):
    core = Core.named(name)

    def cycles(loop: list[Instruction]) -> float:
        return in_order.cycles(loop, core)

    # One multiply-add a cycle; on one accumulator, one per latency.
    assert cycles(independent(24)) == 24
    assert cycles([FMA]) == core.fma_latency
    # A load of 64 bits starts beside a multiply-add, one of 128 bits starts alone.
    narrow, wide = (Instruction("ldr", f"{kind}25, [x0]") for kind in "dq")
    assert cycles([*independent(12), narrow, *independent(24)[12:]]) == 24
    assert cycles([*independent(12), wide, *independent(24)[12:]]) == 25
    # Both halves of the load path: two cycles each, back to back.
    assert cycles([wide, Instruction("ldr", "q26, [x0, #16]")]) == 4
    # An `ins` takes the vector unit for a cycle.
    insert = Instruction("ins", "v25.d[1], x9")
    assert cycles([*independent(24), insert]) == 25
    # Counting down and branching pair up.
    assert cycles([Instruction("subs", "x1, x1, #1"), Instruction("b.ne", "loop")]) == 1


def test_in_order_pipeline_wants_its_facts():
    with pytest.raises(ValueError, match="cortex-a72 is not described"):
        in_order.cycles([FMA], Core.named("cortex-a72"))
