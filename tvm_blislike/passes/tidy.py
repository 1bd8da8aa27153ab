"""Clean-up between passes that read the graph."""

from __future__ import annotations

import tvm
from tvm import relax

# Constants and other names into their readers, and out with what nobody reads: it would count as
# a reader of its operands.
TIDY = tvm.transform.Sequential(
    [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
)
