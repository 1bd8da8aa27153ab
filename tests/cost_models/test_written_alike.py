"""Which images may take over each other's memory, and whose rows threads divide."""

from __future__ import annotations

import dataclasses

import pytest

from tvm_blislike.cost_models.parallel import (
    divides_rows,
    passed_bytes_per_cycle,
    share_last_cache,
    written_alike,
)
from tvm_blislike.hardware import Core

ZEN4 = Core.named("zen4")
VIRTUAL = dataclasses.replace(ZEN4, is_virtual=True)
NONE = dataclasses.replace(ZEN4, caches=())


@pytest.mark.parametrize(
    ("rows", "threads", "expected"),
    [(56, 2, True), (55, 2, True), (14, 2, True), (7, 2, False), (28, 8, False), (1, 2, False)],
)
def test_rows_are_divided_where_parts_are_nearly_equal(rows, threads, expected) -> None:
    assert divides_rows(rows, threads) == expected


def test_cores_share_their_last_cache_up_to_its_number() -> None:
    shared = ZEN4.caches[-1].shared_by
    assert share_last_cache(ZEN4, shared) and not share_last_cache(ZEN4, shared + 1)
    assert not share_last_cache(VIRTUAL, 2) and not share_last_cache(NONE, 2)


def test_what_is_passed_beyond_a_cache_is_slow() -> None:
    near = dataclasses.replace(ZEN4, passed_bytes_per_cycle=8.0)
    far = dataclasses.replace(near, is_virtual=True)
    assert passed_bytes_per_cycle(near, near.caches[-1].shared_by) == 8
    assert passed_bytes_per_cycle(near, near.caches[-1].shared_by + 1) == 1
    assert passed_bytes_per_cycle(far, 2) == 1
    assert passed_bytes_per_cycle(dataclasses.replace(far, passed_bytes_per_cycle=0.5), 2) == 0.5


def test_images_of_a_size_are_alike_whatever_their_channels() -> None:
    names = {written_alike((1, blocks, 28, 28, 16), VIRTUAL, 2) for blocks in (1, 8, 32)}
    assert len(names) == 1 and names != {""}
    assert names != {written_alike((1, 8, 14, 14, 16), VIRTUAL, 2)}
    assert names != {written_alike((1, 8, 28, 28, 8), VIRTUAL, 2)}


@pytest.mark.parametrize("shape", [(1, 64, 28, 28), (8, 4, 28, 28, 16), (1000,), ()])
def test_other_tensors_share_all_memory(shape) -> None:
    assert written_alike(shape, VIRTUAL, 2) == ""


def test_all_memory_is_shared_by_one_thread_or_one_cache() -> None:
    image = (1, 4, 28, 28, 16)
    assert written_alike(image, VIRTUAL, 1) == ""
    assert written_alike(image, ZEN4, 2) == ""
    assert written_alike(image, ZEN4, ZEN4.caches[-1].shared_by + 1) != ""
