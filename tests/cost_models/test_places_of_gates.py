"""Where gates are multiplied: the place follows sizes, threads, and the caches of a core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_blislike.cost_models.gates import Place, place
from tvm_blislike.hardware import Core

ZEN3 = Core.named("zen3")


def of(core: Core, threads: int, layer: tuple[int, int, int]) -> Place:
    """Return the place for (channels, rows and columns, outputs of the layer behind)."""
    channels, size, outputs = layer
    image = 4 * channels * size * size
    return place(core, threads, size, image, 4 * channels * outputs if outputs else None)


@pytest.mark.parametrize("name", ["zen3", "zen5", "golden-cove", "cortex-a76", "cortex-a53"])
def test_few_outputs_of_a_large_image_take_the_gates(name: str) -> None:
    core = Core.named(name)
    for threads in (1, 2):
        assert of(core, threads, (32, 112, 16)) is Place.WEIGHTS
        assert of(core, threads, (1152, 7, 320)) is Place.EPILOGUE


def test_without_a_layer_behind_threads_decide() -> None:
    assert of(ZEN3, 1, (96, 56, 0)) is Place.EPILOGUE
    assert of(ZEN3, 2, (96, 56, 0)) is Place.ROWS
    # 7 rows are 4 and 3: layers divide channels there.
    assert of(ZEN3, 2, (960, 7, 0)) is Place.EPILOGUE


def test_a_larger_cache_keeps_the_image() -> None:
    layer = (480, 14, 112)
    assert of(ZEN3, 1, layer) is Place.WEIGHTS
    first, second, *others = ZEN3.caches
    larger = replace(ZEN3, caches=(first, replace(second, bytes=4 << 20), *others))
    assert of(larger, 1, layer) is Place.EPILOGUE


def test_slow_memory_keeps_the_weights() -> None:
    layer = (480, 14, 112)
    slow = replace(ZEN3, memory_core_gb_per_s=2.0, memory_gb_per_s=2.0)
    assert of(slow, 1, layer) is Place.EPILOGUE
    assert of(slow, 1, (32, 112, 16)) is Place.WEIGHTS


def test_cores_far_apart_keep_rows_at_home() -> None:
    layer = (64, 28, 0)
    near = replace(ZEN3, is_virtual=False, passed_bytes_per_cycle=32.0)
    far = replace(near, passed_bytes_per_cycle=1.0)
    assert of(near, 2, layer) is Place.EPILOGUE
    assert of(far, 2, layer) is Place.ROWS
