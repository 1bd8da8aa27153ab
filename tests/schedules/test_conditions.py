"""Hidden conditions: the same functions as with conditions that TVM looks into."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import te

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import all_implementations
from tvm_blislike.schedules.conditions import primfunc_of

WORKLOADS = {
    "padded": Conv2dWorkload(1, 32, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1)),
    "no padding": Conv2dWorkload(1, 32, 9, 11, 32, 3, 3),
    "more behind": Conv2dWorkload(2, 16, 13, 17, 32, 3, 3, padding=(0, 1, 2, 0)),
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("name", ["conv2d_winograd", "conv2d_winograd_1d"])
def test_hidden_or_not_a_definition_is_the_same(workload: Conv2dWorkload, name: str) -> None:
    strategy = Strategy(Core.named("zen4"), 1)
    (template,) = (each for each in all_implementations() if each.name == name)
    config = next(iter(template.configs(workload, strategy.core, 1)))

    def defined() -> list[te.Tensor]:
        shape = Layout(config.data_layout).shape(workload.n, workload.ci, workload.h, workload.w)
        data = te.placeholder(shape, name="data")
        weights = te.placeholder((workload.co, workload.ci, workload.kh, workload.kw), name="w")
        packed = template.pack_te(workload, config, weights)
        packed = te.placeholder(packed.shape, name="packed")
        return [data, packed, template.compute(workload, config, data, packed)]

    plain = te.create_prim_func(defined())
    assert "blislike_inside" not in plain.script()
    assert tvm_ffi.structural_equal(primfunc_of(defined), plain)
