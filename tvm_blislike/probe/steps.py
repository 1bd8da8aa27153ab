"""What is measured, as data: which kernel works on how much, and what its work counts as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.probe.builders import BLOCK_VECTORS
from tvm_blislike.probe.compute_kernels import CHAIN_PAIRS, FMA_ROUNDS
from tvm_blislike.probe.kernels import accumulators, block_bytes, word_product

if TYPE_CHECKING:
    from tvm_blislike.hardware import Cache, Core

# A level is read over half its size, but over no more than this many times the level before,
# which is all that is needed to miss that one: less to share with other guests of a machine.
_TIMES_LEVEL_BEFORE = 8
_TIMES_LAST_LEVEL = 4
_LEAST_MEMORY_BYTES, _MOST_MEMORY_BYTES = 64 << 20, 1 << 30
MEMORY = "memory"
_NEAR_LINES = 16


@dataclass(frozen=True)
class Step:
    """One measurement.

    Parameters
    ----------
    kernel : str
        Its name in `kernels.functions`.
    work : float
        What a repeat does, all tasks together: FMAs, integer operations, vectors, bytes, lines or
        hand-overs.
    tasks : int
        Threads.
    blocks : int
        The kernel's `steps`: blocks of memory per task, or lines of a walk.
    warm : bool
        Whether what it reads shall be where it was left by a run before.
    """

    kernel: str
    work: float
    tasks: int = 1
    blocks: int = 1
    warm: bool = True


def steps_of(core: Core, threads: int, memory_bytes: int) -> dict[str, Step]:
    """Return what to measure of a core, by name: `... all` is with all threads.

    Parameters
    ----------
    core : Core
        The core as described before measuring.
    threads : int
        What all threads are.
    memory_bytes : int
        Memory to read where no cache is meant (`memory_bytes_of`).
    """
    steps = {"fma": fmas(core, 1), "chain": Step("chain", 2 * CHAIN_PAIRS)}
    if word_product(core):
        steps["bf16"] = Step("bf16", fmas(core, 1).work)
    steps |= _load_steps(core) | _walk_steps(core, memory_bytes)
    steps |= {f"stream {n}": stream(core, size, 1) for n, size in working_sets(core).items()}
    steps |= _half_of_shared(core, memory_bytes)
    steps[f"stream {MEMORY}"] = stream(core, memory_bytes, 1, warm=False)
    if threads > 1:
        steps |= {"fma all": fmas(core, threads), "fork all": Step("fork", 1, threads)}
        steps |= _handing_over(core, threads)
        for level, size in _shares(core, threads).items():
            steps[f"stream {level} all"] = stream(core, size, threads)
        steps[f"stream {MEMORY} all"] = stream(core, memory_bytes // threads, threads, warm=False)
    return steps


def fmas(core: Core, tasks: int) -> Step:
    """Return the step of the FMA peak."""
    return Step("fma", FMA_ROUNDS * accumulators(core) * tasks, tasks)


def stream(core: Core, size: int, tasks: int, warm: bool = True) -> Step:
    """Return the step in which each task reads `size` bytes of its own."""
    blocks = _blocks(core, size)
    return Step("stream", blocks * block_bytes(core) * tasks, tasks, blocks, warm)


def _handing_over(core: Core, threads: int) -> dict[str, Step]:
    """What each task has written, as much as its core keeps: read by another one, or itself."""
    level = own_level(core)
    if level is None:
        return {}
    blocks = _blocks(core, working_sets(core)[level])
    work = blocks * block_bytes(core)
    return {f"{how} all": Step(how, work, threads, blocks) for how in ("passed", "kept")}


def _half_of_shared(core: Core, memory_bytes: int) -> dict[str, Step]:
    """Half of the last level, of which other guests of the machine may have taken something."""
    last = core.caches[-1] if core.caches else None
    if last is None or last.shared_by == 1 or not core.is_virtual:
        return {}
    half = last.bytes // 2
    if not working_sets(core)[f"L{last.level}"] < half < memory_bytes:
        return {}
    return {f"half L{last.level}": stream(core, half, 1)}


def own_level(core: Core) -> str | None:
    """Return the last cache level that each core has for itself."""
    own = [cache.level for cache in core.caches if cache.shared_by == 1]
    return f"L{own[-1]}" if own else None


def _load_steps(core: Core) -> dict[str, Step]:
    """Loads and stores that hit the first-level cache, alone and beside FMAs."""
    blocks = _blocks(core, working_sets(core).get("L1", 4 * block_bytes(core)))
    vectors = BLOCK_VECTORS * blocks
    kernels = ("fma_elements", "fma_vectors", "read", "write")
    return {name: Step(name, vectors, blocks=blocks) for name in kernels}


def _walk_steps(core: Core, memory_bytes: int) -> dict[str, Step]:
    """Lines in no order: in the first-level cache, and in memory."""
    lines = 1 << (memory_bytes // core.line_bytes).bit_length() - 1
    return {
        "walk near": Step("walk", 1, blocks=_NEAR_LINES),
        "walk memory": Step("walk", 1, blocks=lines, warm=False),
        "walks memory": Step("walks", 1, blocks=lines, warm=False),
    }


def _blocks(core: Core, size: int) -> int:
    return max(size // block_bytes(core), 1)


def working_sets(core: Core) -> dict[str, int]:
    """Return the bytes that one core reads for each cache level."""
    sizes: dict[str, int] = {}
    before = None
    for cache in core.caches:
        at_most = _TIMES_LEVEL_BEFORE * before if before else cache.bytes
        sizes[f"L{cache.level}"] = min(cache.bytes // 2, at_most)
        before = cache.bytes
    return sizes


def _shares(core: Core, threads: int) -> dict[str, int]:
    """Return the bytes that each of several threads reads for each level that they share.

    A level whose share is no larger than the level before is left out, unless it holds what that
    one evicts: then both hold the piece together.
    """
    sizes: dict[str, int] = {}
    before = 0
    for cache in core.caches:
        share = _share(cache, before, threads)
        if cache.shared_by > 1 and share > before:
            sizes[f"L{cache.level}"] = min(share, _TIMES_LEVEL_BEFORE * before or share)
        before = cache.bytes
    return sizes


def _share(cache: Cache, before: int, threads: int) -> int:
    own = cache.bytes // min(cache.shared_by, threads)
    return before + own // 2 if cache.policy in ("exclusive", "victim") else own // 2


def memory_bytes_of(core: Core, available: int) -> int:
    """Return the bytes to read for memory: far more than the last cache holds, where there is room.

    Parameters
    ----------
    available : int
        Bytes of memory that are free.
    """
    last = core.caches[-1].bytes if core.caches else 0
    wanted = max(_LEAST_MEMORY_BYTES, _TIMES_LAST_LEVEL * last)
    return min(wanted, _MOST_MEMORY_BYTES, available // 4)
