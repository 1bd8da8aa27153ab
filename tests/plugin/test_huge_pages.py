from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from zoo import build

import tvm_blislike
from tvm_blislike.runtime import huge_pages
from tvm_blislike.runtime.huge_pages import (
    HUGE_BYTES,
    collapse,
    filled_blocks,
    is_wanted,
    moved,
    on_huge_pages,
)

# Number of a block that tensors begin in.
_FAR = 100

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def fresh_memory() -> np.ndarray:
    """Return six blocks and some pages, nothing of it used, apart from all other memory."""
    size = 7 * HUGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, size + 2 * mmap.PAGESIZE, flags=flags)
    whole = np.frombuffer(pages, np.uint8)
    for offset in (0, size + mmap.PAGESIZE):
        address = ctypes.c_void_p(whole.ctypes.data + offset)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return np.frombuffer(pages, np.uint8, size, mmap.PAGESIZE)


def blocks_of(memory: np.ndarray) -> range:
    start = memory.ctypes.data
    return range(-(-start // HUGE_BYTES), (start + memory.size) // HUGE_BYTES)


def huge_bytes_of(memory: np.ndarray) -> int:
    """Return the bytes on huge pages in the mappings of an array, by the kernel's own account."""
    text, total = Path("/proc/self/smaps").read_text(), 0
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        start, end = (int(x, 16) for x in entry.split(" ", 1)[0].split("-"))
        if memory.ctypes.data <= start and end <= memory.ctypes.data + memory.size:
            total += 1024 * int(re.search(r"AnonHugePages: +(\d+) kB", entry)[1])
    return total


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
    collapse(blocks_of(memory))
    np.testing.assert_array_equal(memory, content)
    require_moving()
    assert huge_bytes_of(memory) == len(blocks_of(memory)) * HUGE_BYTES


def test_blocks_across_the_border_of_mappings_are_moved() -> None:
    memory = fresh_memory()
    memory[:] = 1
    blocks = blocks_of(memory)
    base = blocks[0] * HUGE_BYTES - memory.ctypes.data
    # As numpy does for large arrays: from here on these are two mappings.
    border = base + HUGE_BYTES + 5 * mmap.PAGESIZE
    memory.base.obj.madvise(mmap.MADV_HUGEPAGE, mmap.PAGESIZE + border, 2 * HUGE_BYTES)
    assert set(blocks) <= filled_blocks()
    collapse(blocks)
    require_moving()
    assert huge_bytes_of(memory) == len(blocks) * HUGE_BYTES


def test_a_block_that_cannot_be_moved_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    done: set[int] = set()

    class Kernel:
        @staticmethod
        def madvise(address: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> int:
            first, count = address.value // HUGE_BYTES, length.value // HUGE_BYTES
            if advice == mmap.MADV_HUGEPAGE:
                return 0
            for block in range(first, first + count):
                if block == 12:
                    return -1
                done.add(block)
            return 0

    monkeypatch.setattr(huge_pages, "_libc", Kernel)
    collapse([14, 10, 11, 12, 20, 13])
    assert done == {10, 11, 13, 14, 20}


def require_moving() -> None:
    """Skip where the kernel does not move memory (before Linux 6.1)."""
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if release < (6, 1) or not is_wanted():
        pytest.skip("this kernel moves no memory")


@pytest.mark.parametrize(
    ("start", "size", "whole"),
    [
        (0, 2 * HUGE_BYTES, range(2)),  # aligned: the first block as well
        (0, 2 * HUGE_BYTES + 8, range(2)),
        (8, 2 * HUGE_BYTES - 8, range(1, 2)),
        (8, 2 * HUGE_BYTES, range(1, 2)),
        (8, HUGE_BYTES, range(0)),
    ],
)
def test_all_whole_blocks_of_a_tensor_come_from_huge_pages(
    start: int, size: int, whole: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Kernel:
        @staticmethod
        def madvise(address: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> None:
            assert advice == mmap.MADV_HUGEPAGE and not address.value % HUGE_BYTES
            first = address.value // HUGE_BYTES - _FAR
            asked.extend(range(first, first + length.value // HUGE_BYTES))

    tensor = SimpleNamespace(
        data_ptr=lambda: _FAR * HUGE_BYTES + start, shape=(size,), dtype="uint8"
    )
    monkeypatch.setattr(huge_pages, "_libc", Kernel)
    monkeypatch.setattr(huge_pages, "is_wanted", lambda: True)
    on_huge_pages(tensor)
    assert asked == list(whole)


def test_what_is_no_memory_is_refused_without_harm() -> None:
    # Nothing lies in the first two blocks of the address space, and nobody may use the last.
    collapse([0, 1, (1 << 47) // HUGE_BYTES])


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
    compiled._machine.started = None
    first, second = compiled.run(image()), compiled.run(image())
    monkeypatch.setenv("TVM_BLISLIKE_HUGE_PAGES", "0")
    compiled._machine.started = None
    plain = compiled.run(image())
    for found in (first, second):
        np.testing.assert_array_equal(found["logits"], plain["logits"])


def test_weights_and_fresh_memory_are_moved_once(
    compiled: tvm_blislike.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr(huge_pages, "collapse", lambda blocks: asked.append(set(blocks)))
    compiled._machine.started = None
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
