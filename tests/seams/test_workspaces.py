"""Pieces of TVM's pool: held ones stay hidden, all others are found and given back."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

import pytest
import tvm

from tvm_blislike.tvm_seams import runtime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

SIZES = (200_000, 1_000_000, 3_000_000)


def in_a_thread(work: Callable[[], object]) -> object:
    """Return what a fresh thread, with a pool of its own, returns."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def take(size: int) -> int:
    library = ctypes.CDLL(None)
    library.TVMBackendAllocWorkspace.restype = ctypes.c_void_p
    return library.TVMBackendAllocWorkspace(1, 0, ctypes.c_uint64(size), 1, 8)


def give_back(address: int) -> None:
    assert ctypes.CDLL(None).TVMBackendFreeWorkspace(1, 0, ctypes.c_void_p(address)) == 0


def filled_pool() -> dict[int, int]:
    """Put a piece of each size into the pool of this thread; return sizes by address."""
    assert tvm.cpu().exist
    pieces = {take(size): size for size in SIZES}
    for address in pieces:
        give_back(address)
    return pieces


def test_all_pieces_are_found_in_every_search() -> None:
    def work() -> list[bool]:
        pieces = filled_pool()
        verdicts = []
        for _ in range(3):
            found = dict(runtime.workspaces())
            verdicts += [found.get(address, 0) >= size for address, size in pieces.items()]
        return verdicts

    assert in_a_thread(work) == [True] * 3 * len(SIZES)


def test_the_pool_is_as_before() -> None:
    def work() -> tuple[set[int], list[int], int]:
        pieces = filled_pool()
        counts = [len(runtime.workspaces()) for _ in range(3)]
        return {take(size) for size in pieces.values()} ^ set(pieces), counts, len(pieces)

    changed, counts, pieces = in_a_thread(work)
    assert not changed
    # One more, which the first search has made and each later one exchanges.
    assert counts == [pieces + 1] * 3


def test_held_pieces_are_not_given_away() -> None:
    def work() -> bool:
        pieces = filled_pool()
        held = take(SIZES[-1])
        found = dict(runtime.workspaces())
        give_back(held)
        return held in pieces and held not in found

    assert in_a_thread(work)


def test_nothing_is_found_where_sizes_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert runtime.workspaces() == []
