"""Weights of kept models in a file: read as they were written, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi

from tvm_blislike.cache import weights
from tvm_blislike.errors import ModelError
from tvm_blislike.runtime.arrays import ALIGNMENT
from tvm_blislike.tvm_seams.loaded import empty, fill, memory_of

TYPES = ["float32", "int8", "bfloat16", "float16", "int64", "bool", "float8_e4m3fn"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a few bytes are several pieces."""
    monkeypatch.setattr(weights, "_PIECE_BYTES", 100)


def tensor(shape: tuple[int, ...], dtype: str, seed: int) -> tvm_ffi.Tensor:
    """A tensor of random bytes."""
    found = empty(shape, dtype)
    size = len(memory_of(found))
    memory_of(found)[:] = np.random.default_rng(seed).integers(0, 2, size, "uint8").tobytes()
    return found


def some_weights() -> weights.Weights:
    """Of two functions that share one; sizes of none, of one and of several pieces."""
    shapes = [(3, 5), (1,), (0, 4), (7, 11, 2), (), (129,), (64,)]
    made = [tensor(s, t, n) for n, (s, t) in enumerate(zip(shapes, TYPES, strict=True))]
    return {"main": made[:5], "main_1": [made[6], made[3], made[5]]}


def contents(found: weights.Weights) -> dict[str, list[object]]:
    return {
        name: [(tuple(t.shape), str(t.dtype), bytes(memory_of(t))) for t in each]
        for name, each in found.items()
    }


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = some_weights()
    told = json.loads(json.dumps(weights.write(written, tmp_path / "weights.bin")))
    assert len(told["pieces"]) > 5
    found = weights.read(tmp_path / "weights.bin", told)
    assert contents(found) == contents(written)
    places = [t.data_ptr() for each in found.values() for t in each if 0 not in t.shape]
    assert all(place % ALIGNMENT == 0 for place in places)
    assert found["main_1"][1].data_ptr() == found["main"][3].data_ptr()
    assert len(set(places)) == len(places) - 1
    one = found["main"][0]
    del found
    assert contents({"": [one]})[""] == contents(written)["main"][:1]


def test_no_weights_are_an_empty_file(tmp_path: Path) -> None:
    told = weights.write({}, tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size == 0
    assert weights.read(tmp_path / "weights.bin", told) == {}


@pytest.mark.parametrize("damage", ["first", "last", "middle", "cut", "longer", "gone"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "weights.bin"
    told = weights.write(some_weights(), path)
    content = bytearray(path.read_bytes())
    places = {"first": 0, "last": -1, "middle": len(content) // 2}
    if damage in places:
        content[places[damage]] ^= 1
    path.write_bytes(content[:-64] if damage == "cut" else content + b" " * (damage == "longer"))
    if damage == "gone":
        path.unlink()
    with pytest.raises((ModelError, FileNotFoundError)):
        weights.read(path, told)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.bin"
    told = weights.write(some_weights(), path)

    def cut(whole: object) -> None:
        path.write_bytes(path.read_bytes()[:150])

    monkeypatch.setattr(weights, "on_huge_pages", cut)
    with pytest.raises(ModelError, match="damaged"):
        weights.read(path, told)


def test_kernels_take_what_was_read(tmp_path: Path) -> None:
    values = np.arange(12, dtype="float32").reshape(3, 4).astype(ml_dtypes.bfloat16)
    written = empty((3, 4), "bfloat16")
    fill(written, values)
    other = tensor((5,), "int8", 0)
    told = weights.write({"main": [other, written]}, tmp_path / "weights.bin")
    found = weights.read(tmp_path / "weights.bin", told)["main"][1]
    # What code of kernels refuses: a tensor that begins behind its pointer.
    assert tvm_ffi.get_global_func("vm.builtin.ensure_zero_offset")(found).same_as(found)
    assert bytes(memory_of(found)) == values.tobytes()
