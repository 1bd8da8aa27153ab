"""The emulated board, prepared once; tests fail, not skip, where that is impossible."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_board import Board, prepare


@pytest.fixture(scope="session")
def board() -> Board:
    return prepare()


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """An input of `small_network`."""
    return np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")
