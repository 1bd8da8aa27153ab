"""The one screen of `explain`: what it sums up, and that it fits terminals."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import zoo
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from small_models import small_network
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike import pipeline
from tvm_blislike.cli.app import app
from tvm_blislike.cli.overview import print_overview
from tvm_blislike.inspect import overview
from tvm_blislike.model.report import LayerReport, LeftOut, Report
from tvm_blislike.passes import schedule


def _layer(number: int, ms: float | None, **others: object) -> LayerReport:
    fields = {"kind": "gemm", "implementation": "gemm", "microkernel": "avx512_f32_6x64"}
    times = {"predicted_ms": ms, "peak_fraction": None if ms is None else 0.5}
    config = {} if ms is None else {"mr": 6}
    workload = f"gemm {number}x7x9"
    return LayerReport(
        f"k{number}", workload=workload, config=config, **{**fields, **others}, **times
    )


@pytest.fixture(scope="module")
def network() -> Report:
    """Convolutions of several algorithms, pooling, a fully connected layer."""
    return tvm_blislike.explain(zoo.build("squeezenet1_1", image=64), threads=1)


@pytest.fixture(scope="module")
def made() -> Report:
    """Every kind of remark, and words longer than a narrow terminal."""
    layers = [_layer(i, 0.25 * i, fused=("add", f"op{i % 9}")) for i in range(1, 20)]
    layers += [layers[-1], _layer(30, None, kind="reduction", implementation="default rule")]
    layers.append(
        LayerReport("u", "unscheduled: no loops", "3 -> 3", "default rule", reason="unscheduled: x")
    )
    left = tuple(LeftOut("in float32:", (f"conv {i}",) * i, f"reason {i}") for i in range(1, 8))
    impossible = ("the else branch of If (node 'long/name/of/it') cannot be computed: no",)
    notes = ("a fact", *map(str, left), *impossible)
    return Report(tuple(layers), "native-of-a-rather-long-name", 2, notes, left, impossible)


def _shown(report: Report, width: int, **options: object) -> str:
    file = io.StringIO()
    print_overview(Console(file=file, width=width, **options), report, "net.onnx")
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_it_fits_the_terminal(network: Report, made: Report, width: int) -> None:
    for report in (network, made):
        lines = _shown(report, width).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 55 if width < 78 else len(lines) <= 42
        for share in overview.shares(report):
            begins = share.name if width >= 80 else share.name.split()[-1].split("+")[0]
            assert any(begins in line for line in lines)
        for layer, _ in overview.slowest(report):
            assert layer.workload in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_colours_are_for_terminals_that_want_them(
    made: Report, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = _shown(made, width)
    assert "\x1b" not in plain
    coloured = _shown(made, width, force_terminal=True, color_system="standard")
    assert "\x1b[36m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in _shown(made, width, force_terminal=True, color_system="standard")


def test_it_has_the_ten_slowest_layers_and_counts_equal_ones(made: Report) -> None:
    slowest = overview.slowest(made)
    assert [layer.name for layer, _ in slowest] == [f"k{i}" for i in range(19, 9, -1)]
    assert [count for _, count in slowest] == [2] + [1] * 9
    assert "gemm 19x7x9  x2" in _shown(made, 120)


@given(st.lists(st.none() | st.floats(0.0, 1e3), max_size=30))
def test_shares_are_of_all_that_is_predicted(times: list[float | None]) -> None:
    layers = [_layer(i, ms, implementation=f"a{i % 4}") for i, ms in enumerate(times)]
    report = Report(tuple(layers))
    found = overview.shares(report)
    assert sum(share.kernels for share in found) == len(times)
    assert sum(share.ms for share in found) == pytest.approx(report.predicted_ms)
    whole = 1.0 if report.predicted_ms else 0.0
    assert sum(share.part for share in found) == pytest.approx(whole)
    assert sorted((share.ms for share in found), reverse=True) == [share.ms for share in found]
    assert all(0.499 < share.peak_fraction < 0.501 for share in found if share.ms > 1e-300)
    for share in found:
        if share.name.startswith("a"):
            own = [ms for i, ms in enumerate(times) if ms is not None and f"a{i % 4}" == share.name]
            assert share.ms == pytest.approx(sum(own))


def test_each_reason_is_told_once_with_its_layers(made: Report) -> None:
    found = overview.fallbacks(made)
    assert [(f.layers, f.reason) for f in found[:2]] == [(7, "reason 7"), (6, "reason 6")]
    assert overview.Fallback("plain loops for", 1, "unscheduled: x") in found
    assert len(found) == 8
    assert "in float32 7 layers: reason 7" in _shown(made, 200)
    assert "3 more reasons: --all" in _shown(made, 200)
    assert overview.facts(made) == ["a fact"]


def test_nothing_to_tell_is_told() -> None:
    text = _shown(Report(()), 60)
    assert "0.000 ms predicted for 0 of 0 kernels" in text
    assert "fell back\n  no layer" in text


def test_kernels_say_what_is_fused_into_them(network: Report) -> None:
    """TVM names a kernel after its operators."""
    for layer in network.layers:
        of_several = layer.name.startswith("fused_")
        assert bool(layer.fused) == of_several, layer
        assert all(name in layer.name for name in layer.fused)
    assert sum(layer.fused == ("add", "relu") for layer in network.layers) == 26
    assert "add relu x26" in _shown(network, 120)


def test_planning_tells_what_compiling_would(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tvm_blislike.compile(small_network(), threads=1).explain()

    def none(*_: object) -> None:
        raise AssertionError("code is generated")

    monkeypatch.setattr(pipeline, "compiled_kernels", none)
    monkeypatch.setattr(schedule, "apply_template", none)
    assert tvm_blislike.explain(small_network(), threads=1) == compiled
    assert Report.from_json(compiled.to_json()) == compiled


def test_the_command(network_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "compiled_kernels", None)
    arguments = ["explain", str(network_file), "--threads", "1", "--no-cache"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout and "where the time goes" in done.stdout
    report = Report.from_json(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert done.stdout == _shown(report, 200)
    everything = CliRunner().invoke(app, [*arguments, "--all"]).stdout
    assert all(layer.name in everything for layer in report.layers)
    assert json.loads(report.to_json())["layers"][0]["fused"] is not None
