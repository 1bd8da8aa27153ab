"""The algorithm of examples/own_algorithm.py is treated like the library's own, from end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import own_algorithm
import pytest
from onnx import TensorProto, helper, numpy_helper
from own_algorithm import OUTER, OuterConfig
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints, parse_pin
from tvm_blislike.cli.app import app
from tvm_blislike.errors import UsageError
from tvm_blislike.records import files
from tvm_blislike.schedules import register_implementation, unregister_implementation

M, N = 64, 128
ROW = np.linspace(-1, 1, N, dtype="float32").reshape(1, N)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_implementation(OUTER)
    yield
    unregister_implementation(OUTER.name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return relu(x (M, 1) by a row (1, N)) as a file."""
    nodes = [
        helper.make_node("MatMul", ["x", "row"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [M, 1]), ("y", [M, N]))
    )
    graph = helper.make_graph(nodes, "outer", [x], [y], [numpy_helper.from_array(ROW, "row")])
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "outer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_it_is_short() -> None:
    assert len(Path(own_algorithm.__file__).read_text().splitlines()) < 80


@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_chosen_computed_explained_and_measured(model: Path, threads: int) -> None:
    compiled = tvm_blislike.compile(model, threads=threads)
    (layer,) = compiled.explain().layers
    assert (layer.implementation, layer.microkernel) == ("gemm_outer", "")
    assert layer.config["outside"] in ("rows", "columns") and layer.predicted_ms > 0
    of_products = {"gemm", "gemm_strassen", "gemm_outer"}
    assert {c.implementation for c in layer.candidates} == of_products
    x = np.linspace(-2, 2, M, dtype="float32").reshape(M, 1)
    (y,) = compiled.run(x).values()
    np.testing.assert_allclose(y, np.maximum(x @ ROW, 0), rtol=1e-6)
    (time,) = compiled.profile(x, repeat=3)
    assert time.ms > 0 and "gemm_outer" in time.name


def test_its_fields_can_be_pinned_and_no_others(model: Path) -> None:
    pin = parse_pin("gemm*=gemm_outer,mr=4,outside=columns")
    compiled = tvm_blislike.compile(model, threads=1, constraints=Constraints(pins=(pin,)))
    (layer,) = compiled.explain().layers
    assert (layer.config["outside"], layer.config["mr"]) == ("columns", 4)
    assert layer.reason == "pinned"
    for other in ("tile_h=1", "kc=8"):
        with pytest.raises(UsageError, match="sets no field"):
            parse_pin(f"gemm*=gemm_outer,{other}")


def test_it_is_tuned_recorded_followed_and_reported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The processes that compile candidates import it, too.
    monkeypatch.setenv("PYTHONPATH", str(Path(own_algorithm.__file__).parent))
    records = tmp_path / "records.jsonl"
    result = tvm_blislike.tune(model, threads=1, trials=6, records=records)
    assert result.measured == 6
    good, bad = files.read(records)
    measured = [r for r in good if isinstance(r.config, OuterConfig)]
    assert measured and not bad
    # What a later measurement takes back ("dropped") was computed right, too.
    cold = [r for r in measured if r.context == "cold"]
    assert all(r.status in ("ok", "dropped") and r.error < 1e-6 for r in cold)
    only = Constraints(only=(OUTER.name,))
    compiled = tvm_blislike.compile(model, threads=1, records=records, constraints=only)
    (layer,) = compiled.explain().layers
    assert layer.measured_ms > 0 and layer.implementation == "gemm_outer"
    arguments = ["report", model, "--records", records, "-o", tmp_path / "out", "--no-measure"]
    shown = CliRunner().invoke(app, [*map(str, arguments), "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    (reported,) = json.loads((tmp_path / "out" / "report.json").read_text())["layers"]
    assert "gemm_outer" in {attempt["implementation"] for attempt in reported["attempts"]}
    # Without it, its records are kept, and not followed.
    unregister_implementation(OUTER.name)
    assert files.read(records)[1] == bad
    without = tvm_blislike.compile(model, threads=1, records=records).explain().layers
    assert [layer.implementation for layer in without] == ["gemm"]
