"""f32 = bf16 x bf16 with several steps of k at once: a GEMM over odd sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm

from tvm_blislike.cost_models.conv2d_direct import candidates as direct
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning.kernels import CandidateGroup, as_module, build

NATIVE = native_core()
RUNS = Core.named("zen4")
PAIRS = Types("bfloat16", "bfloat16", "float32", "float32")


@pytest.mark.skipif(
    not NATIVE.isa.folds_broadcast or "bf16" not in NATIVE.features, reason="runs vdpbf16ps"
)
@pytest.mark.parametrize("m, n, k, kc", [(37, 53, 30, 0), (64, 97, 126, 49), (1, 70, 2, 0)])
def test_against_numpy(m: int, n: int, k: int, kc: int) -> None:
    workload = GemmWorkload(m, n, k, types=PAIRS)
    gemm = get_implementation("gemm")
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    configs = list(gemm.configs(workload, NATIVE, 1))
    for config in {configs[0], configs[-1]}:
        chosen = config.with_fields(kc=kc) if kc else config
        group = CandidateGroup(workload, (chosen,), NATIVE, 1)
        target = tvm.target.Target(NATIVE.target_config(1))
        library = build(NATIVE, 1, as_module(group), target, None)
        assert "vdpbf16ps" in library.mod.inspect_source("asm")
        arrays = (a, gemm.pack(workload, chosen, b), np.full((m, n), np.nan, np.float32))
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        library["candidate_0"](*tensors)
        # Products are exact; denormal sums count as zero.
        assert np.abs(tensors[-1].numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


def test_half_a_group_is_refused() -> None:
    reason = get_implementation("gemm").applies(GemmWorkload(2, 3, 7, types=PAIRS), RUNS)
    assert reason.startswith("k = 7 is no multiple of the k group")


def test_convolutions_refuse_with_the_reason() -> None:
    workload = Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, types=PAIRS)
    assert "k groups" in direct.applies(workload, RUNS)
