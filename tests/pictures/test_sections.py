"""Each part of the page: what is drawn, what the table says, and what is said when data lack."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import pytest
from made_findings import ATTEMPTS, LAYERS, findings

from tvm_blislike.bench import ENGINES
from tvm_blislike.pictures import layer_times, micro_kernels, prediction, progress, roofline
from tvm_blislike.pictures.findings import Layer, TuningStep
from tvm_blislike.pictures.look import Look, marker
from tvm_blislike.schedules import all_implementations

MODULES = (layer_times, micro_kernels, roofline, prediction, progress)
LOOKS = [Look(dark, narrow) for dark, narrow in itertools.product((False, True), repeat=2)]
EMPTY = (Layer(1, "gemm 1x2x3", 1, 1.0, 1e-3, 1.0),)


def _figure(module, found, look=LOOKS[0]):
    picture = module.section(found).pictures[0]
    with look.applied(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = picture.draw(look)
        figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_every_picture_can_be_drawn_in_every_look(module) -> None:
    for look in LOOKS:
        for found in (findings(), findings(layers=EMPTY, steps=(), engines={})):
            assert _figure(module, found, look).get_figwidth() == look.width


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_where_data_lack_the_picture_says_so(module) -> None:
    section = module.section(findings(layers=EMPTY, steps=()))
    assert section.pictures[0].alt.startswith("No ")
    assert section.pictures[0].alt in [
        t.get_text() for t in _figure(module, findings(layers=EMPTY, steps=())).texts
    ]
    assert section.rows == ()


def test_best_of_each_micro_kernel_by_hand() -> None:
    best = micro_kernels.best_of_each(LAYERS[0])
    found = [(a.implementation, a.block, a.ms) for a in best]
    # Of the two direct 14x32 the faster; neither warm times nor those inside the model.
    assert found == [("conv2d_winograd", "14x32", 0.008), ("conv2d_direct", "14x32", 0.01)]


def test_bars_are_as_long_as_the_gflops() -> None:
    figure = _figure(micro_kernels, findings())
    bars = [patch.get_width() for axes in figure.axes for patch in axes.patches]
    # 2.4e-3 GFLOP in 0.008 and 0.01 ms; 3e-5 in 0.02 ms.
    assert bars == pytest.approx([300.0, 240.0, 1.5])
    section = micro_kernels.section(findings())
    title = "1: conv 1x8x16x16 3x3 -> 8 p1 (x2)"
    assert section.rows[0] == (title, "conv2d_winograd", "14x32", "300.0", "0.0080", "150", "cold")
    assert section.note == "2 of 3 layers are on record by themselves."


def test_many_layers_come_on_several_sheets() -> None:
    layers = tuple(replace(LAYERS[0], number=n) for n in range(1, 30))
    section = micro_kernels.section(findings(layers=layers))
    assert [p.name for p in section.pictures] == [
        "microkernels",
        "microkernels-2",
        "microkernels-3",
    ]
    with LOOKS[0].applied():
        last = section.pictures[-1].draw(LOOKS[0])
    assert len(last.axes) == 29 - 2 * 12


def test_layers_are_compared_with_the_fastest_peer() -> None:
    assert layer_times.ratio(LAYERS[0]) == pytest.approx(0.5)
    assert layer_times.ratio(LAYERS[1]) is None
    faster = replace(LAYERS[0], engine_ms={"blislike": 1.0, "onnxruntime": 2.0})
    assert layer_times.summary([LAYERS[0], faster, LAYERS[1]]) == (
        "1 of 2 layers are faster than in the fastest peer, 1.00x in the geometric mean."
    )
    section = layer_times.section(findings())
    assert section.rows[0][1:] == ("0.0120", "0.0300", "0.0060", "0.50")
    # Without a time in the model the one on record.
    assert section.rows[1][1:] == ("0.0200", "", "", "")
    assert section.note == "2 of 3 layers have a time."
    figure = _figure(layer_times, findings())
    drawn = {float(x) for line in figure.axes[0].lines for x in line.get_xdata()}
    assert {0.012, 0.03, 0.006, 0.02} <= drawn


def test_roofline_places_layers_by_intensity_and_speed() -> None:
    axes = _figure(roofline, findings()).axes[0]
    points = [tuple(c.get_offsets()[0]) for c in axes.collections]
    # 2.4e6 operations on 0.02e6 bytes in 0.012 ms; 3e4 on 1e4 bytes in 0.02 ms.
    assert points == [pytest.approx((120.0, 200.0)), pytest.approx((3.0, 1.5))]
    slopes = [line.get_ydata()[0] / line.get_xdata()[0] for line in axes.lines[1:]]
    assert slopes == pytest.approx([400.0, 10.0])
    # The slopes end where they meet the peak.
    assert [line.get_xdata()[1] for line in axes.lines[1:]] == pytest.approx([0.5, 20.0])
    rows = roofline.section(findings()).rows
    assert [row[-1] for row in rows] == ["inside the model, for this page", "on record, cold"]


def test_layers_are_judged_by_the_peak_of_their_types() -> None:
    made = findings()
    of_bytes = (replace(LAYERS[0], types="uint8 by int8 to int32"), *LAYERS[1:])
    roofs = replace(made.roofs, peaks_gops={"uint8 by int8 to int32": 800.0})
    judged = findings(layers=of_bytes, roofs=roofs)
    shares = [row[4] for row in roofline.section(judged).rows]
    assert shares == ["25", roofline.section(made).rows[1][4]]
    axes = _figure(roofline, judged).axes[0]
    assert [line.get_ydata()[0] for line in axes.lines[:2]] == [200.0, 800.0]
    speeds = {row[0]: (row[3], row[5]) for row in micro_kernels.section(judged).rows}
    for title, (speed, share) in speeds.items():
        peak = 800 if title == of_bytes[0].title else 200
        assert int(share) == pytest.approx(100 * float(speed) / peak, abs=1)


def test_summary_of_predictions_by_hand() -> None:
    # Measured over predicted: 1.11, 0.5, 0.73.
    assert prediction.summary(ATTEMPTS[:3]).startswith("1 of 3 do; the median")
    assert "0.73" in prediction.summary(ATTEMPTS[:3])
    section = prediction.section(findings())
    assert [row[3:] for row in section.rows[:2]] == [
        ("0.0180", "0.0200", "1.11"),
        ("0.0200", "0.0100", "0.50"),
    ]
    assert len(section.rows) == 4


def test_progress_shows_each_gain() -> None:
    section = progress.section(findings())
    assert section.rows == (("0.0", "0", "0.1000", "1.0000"), ("5.0", "2", "0.0800", "0.8000"))
    assert section.note == "Only 2 measurements on record."
    many = tuple(TuningStep(float(n), 1.0) for n in range(8))
    assert progress.section(findings(steps=many)).note == ""
    assert "3 pauses" in progress.section(findings(pauses=3)).text


def test_algorithms_and_engines_look_different() -> None:
    algorithms = [implementation.name for implementation in all_implementations()]
    for group in (algorithms, list(ENGINES)):
        assert len({marker(name) for name in group}) == len(group)
        for look in LOOKS:
            assert len({look.colour(name) for name in group}) == len(group)
    assert LOOKS[0].colour("of another package")
