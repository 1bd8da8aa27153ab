from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from zoo import build

import tvm_blislike
from tvm_blislike import huge_pages
from tvm_blislike.huge_pages import HUGE_BYTES, collapse, filled_blocks, moved

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def fresh_memory() -> np.ndarray:
    """Return six blocks and some pages, nothing of it used."""
    pages = mmap.mmap(-1, 7 * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8)


def blocks_of(memory: np.ndarray) -> range:
    start = memory.ctypes.data
    return range(-(-start // HUGE_BYTES), (start + memory.size) // HUGE_BYTES)


def huge_bytes_of(memory: np.ndarray) -> int:
    """Return the bytes on huge pages in the mapping of an array, by the kernel's own account."""
    text = Path("/proc/self/smaps").read_text()
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        start, end = (int(x, 16) for x in entry.split(" ", 1)[0].split("-"))
        if start <= memory.ctypes.data < end:
            return 1024 * int(re.search(r"AnonHugePages: +(\d+) kB", entry)[1])
    raise AssertionError("the mapping is gone")


def test_blocks_count_when_half_of_their_pages_are_in_use() -> None:
    memory = fresh_memory()
    memory.base.obj.madvise(mmap.MADV_NOHUGEPAGE)
    blocks = blocks_of(memory)
    assert not filled_blocks() & set(blocks)
    base = blocks[0] * HUGE_BYTES - memory.ctypes.data
    memory[base : base + HUGE_BYTES] = 1
    sparse = base + HUGE_BYTES
    memory[sparse : sparse + HUGE_BYTES // 4] = 1
    assert filled_blocks() & set(blocks) == {blocks[0]}


def test_collapse_moves_memory_and_keeps_what_is_in_it() -> None:
    memory = fresh_memory()
    content = np.random.default_rng(0).integers(0, 256, memory.size, np.uint8)
    memory[:] = content
    count = collapse(blocks_of(memory))
    np.testing.assert_array_equal(memory, content)
    if not count:
        pytest.skip("this kernel moves no memory")
    assert huge_bytes_of(memory) >= count * HUGE_BYTES


def test_what_is_no_memory_is_refused_without_harm() -> None:
    # Nothing lies in the first two blocks of the address space, and nobody may use the last.
    assert collapse([0, 1, (1 << 47) // HUGE_BYTES]) == 0


@pytest.fixture(scope="module")
def compiled() -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(build("resnet18", image=64))


def image() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 3, 64, 64), dtype=np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_the_same(
    compiled: tvm_blislike.CompiledModel, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.threads = threads
    compiled._machine = None
    first, second = compiled.run(image()), compiled.run(image())
    monkeypatch.setenv("TVM_BLISLIKE_HUGE_PAGES", "0")
    compiled._machine = None
    plain = compiled.run(image())
    for found in (first, second):
        np.testing.assert_array_equal(found["logits"], plain["logits"])


def test_weights_and_fresh_memory_are_moved_once(
    compiled: tvm_blislike.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr(huge_pages, "collapse", lambda blocks: asked.append(set(blocks)))
    compiled._machine = None
    compiled.run(image())
    compiled.run(image())
    compiled.profile(image(), repeat=1)
    (blocks,) = asked
    # ResNet-18 has 47 MB of weights.
    assert len(blocks) >= 15 and blocks <= filled_blocks()


class Machine:
    """Calls its instrument as TVM's virtual machine does."""

    def __init__(self) -> None:
        self.instrument = None

    def set_instrument(self, instrument: object) -> None:
        self.instrument = instrument

    def call(self, name: str, *args: object) -> None:
        if self.instrument:
            self.instrument(None, name, True, None, *args)
            self.instrument(None, name, False, None, *args)


class Tensor:
    """Float32 values at the start of some memory."""

    dtype = "float32"

    def __init__(self, memory: np.ndarray) -> None:
        memory[:] = 1
        self.memory, self.shape = memory, (memory.size // 8, 2)

    def data_ptr(self) -> int:
        return self.memory.ctypes.data


def test_tensors_of_kernels_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr(huge_pages, "collapse", lambda blocks: asked.append(set(blocks)))
    used, other, machine = Tensor(fresh_memory()), Tensor(fresh_memory()), Machine()
    with moved(machine):
        machine.call("conv", used, 3, None)
        machine.call("vm.builtin.reshape", other)
    assert set(blocks_of(used.memory)) <= asked[0]
    assert not set(blocks_of(other.memory)) & asked[0]
    assert machine.instrument is None


def test_a_failing_run_leaves_no_instrument() -> None:
    machine = Machine()
    with pytest.raises(ZeroDivisionError), moved(machine):
        raise ZeroDivisionError
    assert machine.instrument is None


@pytest.mark.parametrize("value", ["0", "off", " No "])
def test_it_can_be_turned_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_HUGE_PAGES", value)
    machine = Machine()
    with moved(machine):
        assert machine.instrument is None
