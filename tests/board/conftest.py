"""The emulated board, prepared once; tests fail, not skip, where that is impossible."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from emulated_board import Board, prepare
from tvm.rpc.tracker import Tracker


@pytest.fixture(scope="session")
def board() -> Board:
    return prepare()


@pytest.fixture(scope="module")
def tracker(board: Board) -> Iterator[str]:
    """Address of a tracker that knows the board under a key which says nothing of an emulator."""
    made = Tracker("127.0.0.1", port=9190, port_end=9290)
    try:
        with board.rpc_server("--tracker", f"127.0.0.1:{made.port}", key="board"):
            yield f"127.0.0.1:{made.port}"
    finally:
        made.terminate()


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """An input of `small_network`."""
    return np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")
