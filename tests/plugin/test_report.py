"""Reports and small files survive the way to disk and back."""

import os
from pathlib import Path

import pytest

from tvm_blislike.errors import OutputError, all_errors, suggest
from tvm_blislike.files import atomic_path, require_writable, write_text
from tvm_blislike.model.report import Footprint, LayerReport, LeftOut, Report


def test_report_survives_json() -> None:
    layer = LayerReport(
        name="conv",
        kind="conv2d",
        workload="conv 1x3x8x8",
        implementation="conv2d_direct",
        microkernel="avx512_f32_14x32",
        config={"mr": 14, "nr": 32},
        footprint=(Footprint("Bc", "L1", 12000, 0.25),),
        predicted_ms=0.5,
        peak_fraction=0.8,
        reason="fastest",
        macs=1000,
        fused=("add", "relu"),
    )
    left = (LeftOut("in float32:", ("conv 1x3x8x8",), "no"),)
    layers = (layer, LayerReport("pool", "other", "", "default"))
    report = Report(layers, "haswell", 2, ("a",), left, ("the else branch",))
    assert Report.from_json(report.to_json()) == report
    assert report.predicted_ms == 0.5


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("conv 1x3*", ["first"]),
        ("1x3x8x8", ["first"]),
        ("3x8x8*", []),
        ("s?cond", ["second"]),
        ("conv", ["first", "second"]),
        ("pool", []),
    ],
)
def test_layers_are_found_by_a_pattern_or_a_part(pattern: str, found: list[str]) -> None:
    layers = (
        LayerReport("first", "conv2d", "conv 1x3x8x8", "default"),
        LayerReport("second", "conv2d", "conv 1x4x8x8", "default"),
    )
    assert [layer.name for layer in Report(layers).matching(pattern).layers] == found


def test_failure_inside_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(path) as fresh:
        fresh.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_written_text_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["result.json"]


def test_checking_leaves_nothing_and_names_the_directory(tmp_path: Path) -> None:
    require_writable(tmp_path / "new.so")
    assert not os.listdir(tmp_path)
    with pytest.raises(OutputError, match=r"directory .*none does not exist"):
        require_writable(tmp_path / "none" / "new.so")


def test_exit_codes_are_distinct_and_described() -> None:
    codes = [error.exit_code for error in all_errors()]
    assert codes == sorted(set(codes))
    assert all(error.summary and error.__doc__ for error in all_errors())


def test_suggestions() -> None:
    assert suggest("hasswell", ["haswell", "zen2"]) == "did you mean haswell?"
    assert suggest("q", ["haswell", "zen2"]) == "known: haswell, zen2"
    assert suggest("q", []) == "there are none"
