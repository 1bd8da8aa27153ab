"""From records to findings, against values computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import made
import pytest
from made import CORE, STRATEGY, WORKLOADS

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.errors import InputError
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.pictures.collect import described_roofs, findings, steps
from tvm_blislike.pictures.findings import Findings, Layer
from tvm_blislike.records.record import Record
from tvm_blislike.tuning.tasks import Task

TASKS = [
    Task(STRATEGY.choose(WORKLOADS[0]), 3, 0.6),
    Task(STRATEGY.choose(WORKLOADS[1]), 1, 0.3),
    Task(STRATEGY.choose(WORKLOADS[2]), 1, 0.1),
]


def _date(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"2026-01-01T00:{int(minutes):02d}:{rest:06.3f}+00:00"


def _record(number: int, place: int, ms: float, at: float, **fields: object) -> Record:
    record = made.record(WORKLOADS[number], place, [ms * 1e-3], date=_date(at))
    return replace(record, **fields)


def _found(records: Sequence[Record]) -> Findings:
    return findings("net.onnx", STRATEGY, TASKS, records, "some/records.jsonl")


def _is_choice(place: int) -> bool:
    return made.config(WORKLOADS[0], place) == TASKS[0].choice.config


def test_layers_hold_what_is_on_record() -> None:
    found = _found([_record(0, 0, 2.0, 0), _record(0, 1, 1.5, 1), _record(1, 0, 3.0, 2)])
    first, second, third = found.layers
    assert _is_choice(0)
    assert (first.number, first.workload, first.count, first.share) == (1, "gemm 64x96x32", 3, 0.6)
    assert first.gflop == pytest.approx(2 * 64 * 96 * 32 / 1e9)
    assert first.megabytes == pytest.approx(4 * (64 * 32 + 32 * 96 + 64 * 96) / 1e6)
    assert first.intensity == pytest.approx(2 * 64 * 96 * 32 / (4 * (2048 + 3072 + 6144)))
    assert [(a.ms, a.is_untuned) for a in first.attempts] == [(2.0, True), (1.5, False)]
    config = made.config(WORKLOADS[0], 1)
    assert first.attempts[1].block == f"{config.mr}x{config.nr}"
    assert first.attempts[1].predicted_ms == 1e3 * STRATEGY.seconds(WORKLOADS[0], config)
    assert first.followed == first.attempts[1]
    assert first.gflops(1.5) == pytest.approx(first.gflop / 1.5e-3)
    assert [a.ms for a in second.attempts] == [3.0]
    assert (third.attempts, third.followed, third.our_ms) == ((), None, None)
    assert found.records == "records.jsonl"


def test_what_is_wrong_or_dropped_is_left_out() -> None:
    wrong = _record(0, 1, 0.5, 1, status="wrong", reason="made up")
    emulated = _record(0, 2, 0.1, 2, context="emulated")
    found = _found([_record(0, 0, 2.0, 0), wrong, emulated])
    assert [a.ms for a in found.layers[0].attempts] == [2.0]
    assert [step.total_ms for step in found.steps] == [6.0, 6.0]


def test_a_bytes_count_of_a_convolution_by_hand() -> None:
    w = Conv2dWorkload(1, 4, 6, 6, co=8, kh=3, kw=3, stride=(2, 2), padding=(1, 1, 1, 1), groups=2)
    assert sum(w.bytes_moved) == 4 * (4 * 36 + 8 * 2 * 9 + 8 * 3 * 3)
    assert sum(GemmWorkload(2, 3, 5, batch=7, constant_b=False).bytes_moved) == 4 * 7 * (
        10 + 15 + 6
    )


def test_steps_fall_with_each_better_measurement() -> None:
    records = [
        _record(0, 1, 1.5, 0.0),
        _record(0, 0, 2.0, 1.0),
        _record(1, 0, 3.0, 4.0),
        _record(1, 1, 3.5, 300.0),
        _record(1, 2, 2.5, 310.0),
        _record(0, 0, 1.0, 311.0, context="model"),
        _record(0, 2, 1.2, 312.0, status="failed"),
    ]
    taken, pauses = steps(records, TASKS)
    # Three layers of the first workload, untuned 2 ms; one of the second, untuned 3 ms.
    assert [step.total_ms for step in taken] == pytest.approx([9.0, 7.5, 7.5, 7.5, 7.5, 7.0])
    # The 296 s between the third and the fourth are a pause.
    assert [step.seconds for step in taken] == pytest.approx([0, 0, 1, 4, 4, 14])
    assert pauses == 1


def test_a_layer_whose_untuned_configuration_was_not_measured_begins_with_its_first() -> None:
    taken, _ = steps([_record(0, 2, 5.0, 0), _record(0, 1, 4.0, 1)], TASKS)
    assert [step.total_ms for step in taken] == pytest.approx([15.0, 15.0, 12.0])
    assert steps([], TASKS) == ((), 0)


def test_cold_times_count_before_warm_ones() -> None:
    cold = _record(0, 0, 2.0, 0)
    warm = _record(0, 1, 1.0, 1, context="warm")
    inside = _record(0, 0, 1.9, 2, context="model")
    layer = _found([cold, warm, inside]).layers[0]
    assert [a.ms for a in layer.alone] == [2.0]
    assert [a.ms for a in _found([warm, inside]).layers[0].alone] == [1.0]
    assert _found([inside]).layers[0].alone == ()
    assert layer.followed.context == "model"


def test_described_roofs_are_those_of_the_core_file() -> None:
    core = Core.named("cortex-a72")
    roofs = described_roofs(core, 2)
    assert roofs.peak_gflops == pytest.approx(core.peak_gflops(2))
    assert list(roofs.bandwidth_gb_per_s) == ["L1", "L2", "memory"]
    # One 16-byte vector a cycle and core from L1; all cores together what memory delivers.
    assert roofs.bandwidth_gb_per_s["L1"] == pytest.approx(2 * 16 * core.ghz)
    assert core.memory_core_gb_per_s <= roofs.bandwidth_gb_per_s["memory"] <= core.memory_gb_per_s
    assert not roofs.is_measured
    assert not roofs.peaks_gops
    assert described_roofs(core, 64).peak_gflops == described_roofs(core, core.cores).peak_gflops


def test_described_roofs_of_bytes_are_those_of_their_products() -> None:
    core = Core.named("zen4")
    bytes_ = quantized_types(core)
    roofs = described_roofs(core, 1, [bytes_, FLOAT32, bytes_])
    assert roofs.peaks_gops == {str(bytes_): pytest.approx(4 * roofs.peak_gflops)}


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"context": "emulated"}, "emulated boards"),
        ({"threads": 2}, f"{CORE.name}, 2 threads (1)"),
        ({"facts": "0", "core": "other-core"}, "other-core, 1 thread (1)"),
        ({"versions": {"tvm-blislike": "99.0", "apache-tvm": "0.27"}}, "other versions"),
        ({"workload": GemmWorkload(5, 5, 5), "model": "vgg"}, "other models (vgg)"),
    ],
)
def test_records_that_do_not_fit_are_named(fields: dict, hint: str) -> None:
    with pytest.raises(
        InputError, match=r"no record of net.onnx for skylake-avx512, 1 thread"
    ) as e:
        _found([_record(0, 0, 1.0, 0, **fields)])
    assert hint in e.value.hint


def test_a_file_without_records_says_how_to_get_some() -> None:
    with pytest.raises(InputError) as error:
        _found([])
    assert "tune" in error.value.hint


def test_titles_are_short() -> None:
    layer = Layer(7, "conv 1x3x8x8 3x3 -> 4 s2 p1,1,1,1 g3", 2, 0.1, 1.0, 1.0)
    assert layer.title == "7: conv 1x3x8x8 3x3 -> 4 s2 p1 g3 (x2)"
    other = Layer(1, "conv 1x3x8x8 3x3 -> 4 p1,1,2,1", 1, 0.1, 1.0, 1.0)
    assert other.title.endswith("p1,1,2,1")
