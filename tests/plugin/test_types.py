"""Data types of products: in names, in bytes, in JSON, and in what older versions wrote."""

from __future__ import annotations

import json

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.schedules import read_config

QUANTIZED = Types("uint8", "int8", "int32", "float32")


def test_names_and_bytes():
    assert (FLOAT32.short, QUANTIZED.short) == ("f32", "u8s8s32")
    assert Types("bfloat16", "bfloat16", "float32", "bfloat16").short == "bf16f32"
    assert (str(FLOAT32), str(QUANTIZED)) == ("float32", "uint8 by int8 in int32 to float32")
    sizes = (QUANTIZED.a_bytes, QUANTIZED.b_bytes, QUANTIZED.acc_bytes, QUANTIZED.out_bytes)
    assert sizes == (1, 1, 4, 4)
    assert QUANTIZED != Types("int8", "int8", "int32", "float32")
    assert not QUANTIZED.is_uniform and FLOAT32.is_uniform


def test_workloads_carry_them_through_json():
    for workload in (
        GemmWorkload(2, 3, 4, types=QUANTIZED),
        Conv2dWorkload(1, 2, 3, 4, 5, 1, 1, types=Types.of("float16")),
    ):
        assert Workload.from_json(workload.to_json()) == workload
        assert str(workload).endswith(str(workload.types))


def test_what_older_versions_wrote_is_read():
    fields = {"kind": "gemm", "m": 2, "n": 3, "k": 4, "batch": 1, "constant_b": True}
    half = Workload.from_json(json.dumps({**fields, "dtype": "float16"}))
    assert half == GemmWorkload(2, 3, 4, types=Types.of("float16"))
    assert read_config('{"implementation": "gemm", "kr": 8}') == GemmConfig(unroll=8)
    union = {"data_layout": "in place", "packing": "", "ring": 0, "tile_h": 1, "mc": 12}
    packed = read_config(json.dumps({"implementation": "gemm", **union}))
    assert packed == GemmConfig(packing="in place", mc=12)
    shifted = {"implementation": "conv2d_im2col", "data_layout": "NCHW", "packing": "shift"}
    assert read_config(json.dumps(shifted)) == Im2colConfig(packing="shift")


def test_configurations_of_unknown_algorithms_keep_their_fields():
    fields = {"implementation": "gone", "mr": 2, "width": 0}
    config = read_config(json.dumps(fields))
    assert json.loads(config.to_json()) == {**fields, "nr": 0}
    assert config.changed_fields() == fields
