"""fp32 micro-kernels for NEON (AArch64): 32 registers of 4 lanes, `fmla` by element.

Budget: mr * nr / 4 accumulators + nr / 4 for a row of B + ceil(mr / 4) for A <= 32. A is loaded
as vectors and used element by element (`fmla v.4s, v.4s, v.s[i]`), so that a k step of 8x12 costs
five loads for 24 multiply-adds. The paper's shapes 4x16, 4x24 and 4x28 are in the list, the last
one for packed panels only: vectors of B pass through the few registers that 28 accumulators leave.
"""

from __future__ import annotations

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.microkernels.neon_in_order import MultiplyAdd
from tvm_blislike.microkernels.neon_panels import panel_loop, streams

LOOP = panel_loop("neon_f32", MultiplyAdd("fmla v{c}.4s, v{b}.4s, v{a}.s[{lane}]", "<4 x float>"))
SHAPES = (
    *((mr, 4) for mr in range(1, 23)),
    *((mr, 8) for mr in range(1, 13)),
    *((mr, 12) for mr in range(1, 9)),
    *((mr, 16) for mr in range(1, 7)),
    *((mr, 20) for mr in range(1, 5)),
    *((mr, 24) for mr in range(1, 5)),
    *((mr, 28) for mr in range(1, 4)),
    (1, 32),
    (2, 32),
    (1, 48),
)

# Blocks of packed panels beyond that budget.
PANEL_SHAPES = ((4, 28),)

_PLAIN, _PANELS = (
    [Microkernel(ISA, mr, nr, loop=LOOP) for mr, nr in shapes] for shapes in (SHAPES, PANEL_SHAPES)
)
KERNELS = tuple(k for k in within_budget(_PLAIN) if not k.panels_only)
KERNELS += tuple(k for k in _PANELS if streams(k.mr, k.nr))
