"""The reader of LLVM's assembly, and the version of the LLVM that writes it."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
import tvm
from small_kernels import TARGET, doubled

from tvm_blislike.tvm_seams.executables import code_of
from tvm_blislike.tvm_seams.machine_code import count, k_loop, llvm_version


def test_version_is_the_one_that_machine_code_is_made_with() -> None:
    text = code_of(tvm.compile(doubled(), TARGET))
    stated = re.search(r"LLVM version (\d+)", text or "")
    assert llvm_version() >= 20
    assert stated is None or int(stated[1]) == llvm_version()


def test_reader_finds_the_inner_loop_and_its_faults():
    """Checks of machine code see what they look for, in both syntaxes."""
    x86 = """
    f:
    .LBB0_1:                                # %outer
    \tvxorps\t%xmm0, %xmm0, %xmm0
    .LBB0_2:                                #   Parent Loop BB0_1 Depth=1
    \tvmovups\t64(%rsp), %zmm1              # 64-byte Reload
    \tvfmadd231ps\t8(%rdi,%rax){1to16}, %zmm1, %zmm0
    \tvmovaps\t%zmm1, %zmm2
    \tcallq\texpf@PLT
    \tjne\t.LBB0_2
    \tjne\t.LBB0_1
    """
    loop = k_loop(dedent(x86))
    assert [i.name for i in loop] == ["vmovups", "vfmadd231ps", "vmovaps", "callq", "jne"]
    assert [i.uses_stack for i in loop] == [True, False, False, False, False]
    assert [i.reads_memory for i in loop] == [True, True, False, False, False]
    assert [i.moves_register for i in loop] == [False, False, True, False, False]
    assert [i.is_call for i in loop] == [False, False, False, True, False]
    arm = """
    .LBB0_1:
    \tldp\tq0, q1, [sp, #16]
    \tldr\tq3, [x1], #16
    \tfmla\tv2.4s, v0.4s, v1.s[1]
    \tmov\tv4.16b, v2.16b
    \tb.ne\t.LBB0_1
    """
    loop = k_loop(dedent(arm))
    assert [i.uses_stack for i in loop] == [True, False, False, False, False]
    assert [i.reads_memory for i in loop] == [True, True, False, False, False]
    assert [i.moves_register for i in loop] == [False, False, False, True, False]
    assert count(loop).loads == 3
    with pytest.raises(ValueError, match="0 innermost loops"):
        k_loop("f:\n\tret\n")
