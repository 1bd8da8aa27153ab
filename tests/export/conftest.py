"""A bundle for this machine, its programs built with sanitizers."""

from __future__ import annotations

import pytest
import sanitized
from small_models import small_network

import tvm_blislike


@pytest.fixture(scope="session")
def good_bundle(tmp_path_factory: pytest.TempPathFactory) -> sanitized.Programs:
    """The bundle of `small_network`, which no test may change."""
    folder = tmp_path_factory.mktemp("sanitized") / "ship"
    tvm_blislike.compile(small_network(), threads=1).bundle(folder)
    return sanitized.build(folder)
