"""What the tests of tuning share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import run_command, small_model


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Return a model, its records, and what the command `tune` printed."""
    folder = tmp_path_factory.mktemp("tuned")
    model, records = small_model(folder / "small.onnx"), folder / "records.jsonl"
    printed = run_command("tune", model, "--threads", 1, "--records", records, "--json").stdout
    return model, records, json.loads(printed)
