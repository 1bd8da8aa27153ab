"""Blocks inside the loops of an algorithm, to be compiled for what LLVM makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload


@dataclass(frozen=True)
class Nest:
    """A register block in a kind of loop nest: a workload that is compiled in a moment.

    Parameters
    ----------
    name : str
        The kind of nest, by which candidates ask for what was found ("gemm").
    block : str
        The block, "mr x nr" without spaces.
    workload, config : Workload, Config
        What to compile: all blocks whole, memory for panels beyond what may lie on the stack.
    fmas : int
        Multiply-adds of one step of k: the loops to look at have a multiple of them.
    """

    name: str
    block: str
    workload: Workload
    config: Config
    fmas: int
