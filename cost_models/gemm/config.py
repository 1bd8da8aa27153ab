"""The choices of `gemm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tvm_blislike.model.config import KernelConfig


@dataclass(frozen=True, kw_only=True)
class GemmConfig(KernelConfig):
    """How a matrix product is blocked.

    Parameters
    ----------
    mc, nc, kc : int
        Cache blocking: rows and columns of C, steps of k; 0: all of them.
    loop_order : str
        "B3A2C0" or "A3B2C0" (see `geometry.LOOP_ORDERS`).
    packing : str
        How A is read: "packed" into panels first, or "in place".
    prefetch : int
        1 to prefetch the next panel of the operand that passes by during the present one.
    prefetch_bytes : int
        With `prefetch`, how far ahead of their use panels that pass by are asked for; 0:
        8192 bytes.
    parallel : str
        What threads divide: "b", "ic" or "jc"; "" for what gives them the most equal parts.
    open_rows : int
        Where any number of rows may come at run time, the least one; m is then the size that the
        kernel is scheduled for, whole blocks. 0: m rows.
    """

    BEFORE: ClassVar[Mapping[str, str]] = {**KernelConfig.BEFORE, "data_layout": "packing"}

    implementation: str = "gemm"
    mc: int = 0
    nc: int = 0
    kc: int = 0
    loop_order: str = ""
    packing: str = ""
    prefetch: int = 0
    prefetch_bytes: int = 0
    parallel: str = ""
    open_rows: int = 0
