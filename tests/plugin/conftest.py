"""Fixtures of the plugin's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import small_network


@pytest.fixture
def network_file(tmp_path: Path) -> Path:
    """An ONNX file of `small_network`."""
    path = tmp_path / "net.onnx"
    onnx.save(small_network(), path)
    return path


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """An input of `small_network`."""
    return np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")
