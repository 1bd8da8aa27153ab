"""What TVM imports wherever it is imported itself: an entry point of the group "tvm.backends".

TVM's worker processes build what a trace has scheduled, and import no more than TVM.
"""

from __future__ import annotations


def register() -> None:
    """Take the place of TVM's pipeline where this process is one of TVM's workers."""
    from tvm_blislike.tvm_seams import workers

    if workers.is_worker():
        from tvm_blislike.passes import tir_pipeline

        tir_pipeline.take_over()
