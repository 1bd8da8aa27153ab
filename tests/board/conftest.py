"""The emulated board, prepared once; tests fail, not skip, where that is impossible."""

from __future__ import annotations

import pytest
from emulated_board import Board, prepare


@pytest.fixture(scope="session")
def board() -> Board:
    return prepare()
