"""The other examples run, and print what they promise."""

from __future__ import annotations

import re

import onnx_end_to_end
import pytest
import strategy_override


def test_strategy_override_changes_one_layer(capsys: pytest.CaptureFixture[str]) -> None:
    strategy_override.main()
    usual, overruled = capsys.readouterr().out.splitlines()
    assert re.match(r"\w+_f32_\d+x\d+: \d+\.\d+ ms predicted, fastest of", usual)
    assert re.match(r"\w+_f32_4x\d+: \d+\.\d+ ms predicted, asked for", overruled)


def test_onnx_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    onnx_end_to_end.main("squeezenet1_1", 64)
    text = capsys.readouterr().out
    assert "compiled squeezenet1_1 for native-" in text
    assert "loaded again, it computes the same: True" in text
    difference = re.search(r"ONNX Runtime: (\S+) of the largest output", text)
    assert float(difference[1]) <= 1e-5


def test_onnx_end_to_end_without_a_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    onnx_end_to_end.compare(None, None, None)
    assert "not installed" in capsys.readouterr().out
