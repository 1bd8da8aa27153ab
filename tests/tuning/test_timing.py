"""The state of the caches that candidates are timed in."""

from __future__ import annotations

import pytest

from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.tuning.timing import timing_for

SERVER = Core.named("skylake-avx512")


def test_cold_repeats_empty_the_caches_of_one_core() -> None:
    assert timing_for(SERVER, "warm").cold_bytes == 0
    assert timing_for(SERVER).cold_bytes == 1 << 20
    assert timing_for(Core.named("cortex-a53")).cold_bytes >= 1 << 19
    with pytest.raises(UsageError, match="cold, warm"):
        timing_for(SERVER, "hot")


def test_weights_leave_caches_that_are_too_large_to_be_emptied() -> None:
    assert timing_for(SERVER).evicts
    assert not timing_for(SERVER, "warm").evicts
    # A server of TVM's RPC knows no such function.
    assert not timing_for(SERVER, here=False).evicts
    # Copying as much as its L2 has empties all caches of this one.
    assert not timing_for(Core.named("cortex-a53")).evicts
