"""Which of several loops the threads divide, and what follows for the memory of their results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tvm_blislike.hardware import Core
from tvm_blislike.hardware.corefile import PASSED_AFAR
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout

# Part of the work of the busiest thread over an equal one, up to which parts count as equal.
EVEN_ROWS = 1.1


def share(parts: int, threads: int) -> float:
    """Return the part of the work of the busiest thread, of equal parts each thread takes a run."""
    return math.ceil(parts / threads) / parts


def equal_blocks(tiles: int, most: float, parts: int) -> int:
    """Tiles per block when `tiles` are cut into equal blocks, as many for every one of `parts`."""
    blocks = math.ceil(tiles / max(1, int(most)))
    return math.ceil(tiles / (math.ceil(blocks / parts) * parts))


def spanned(parts: int, threads: int, group: int) -> int:
    """Return how many groups, `group` parts each, the run of a thread touches at most."""
    run = math.ceil(parts / threads)
    starts = range(0, parts, run)
    return max((min(s + run, parts) - 1) // group - s // group + 1 for s in starts)


def divides_rows(rows: int, threads: int) -> bool:
    """Return whether layers divide the rows of an image among threads, not its channels.

    A core finds what it has written itself in its own caches, and the lines that it writes again as
    well. So all layers of an image divide it the same way, whatever their kind: by rows where these
    come in nearly equal parts. What another core has written comes at half of L3's rate on cores
    that share one, and at a tenth of L2's on cores that do not (Zen 4, whose two virtual cores
    share an L3 at some times only). Without one the sums and ReLUs of DenseNet-121 took 6.3 ms by
    blocks of channels, 3.5 by rows; with one 0.95 and 1.09. Golden Cove: a depthwise layer of 128
    channels of 56x56 took 61 us by channels, 37 by rows.
    """
    return share(rows, threads) * threads <= EVEN_ROWS


def is_blocked_image(shape: Sequence[int | None]) -> bool:
    """Return whether a shape is that of one image whose channels lie in blocks."""
    return len(shape) == Layout.blocked(1).rank and shape[0] == 1


def written_alike(shape: tuple[int, ...], core: Core, threads: int) -> str:
    """Name what blocked images have in common that may take over each other's memory, "" for none.

    A core that writes what another one has had in its caches waits for it, as one that reads it
    does. Rows of images of the same size begin at the same places, whatever their channels, so a
    line goes to the thread that had it before. Between images of different sizes it would not, for
    half of all lines. Where threads share their last cache that costs less than more memory does.
    Two cores of Zen 4 that share none, images of a size by themselves beside all in the same
    memory: SqueezeNet 1.33 times as fast, MobileNetV1 1.11, MobileNetV2 1.07, ResNet-50 1.03; on
    two that share an L3 1.00, 0.99, 0.97 and 1.00.
    """
    if not is_blocked_image(shape) or threads == 1 or share_last_cache(core, threads):
        return ""
    return "x".join(str(extent) for extent in shape[2:])


def share_last_cache(core: Core, threads: int) -> bool:
    """Return whether what one of the threads has written is in a cache of all others.

    Not known of virtual cores: two of them shared an L3 for minutes, then none (Zen 4).
    """
    return bool(core.caches) and core.caches[-1].shared_by >= threads and not core.is_virtual


def passed_bytes_per_cycle(core: Core, threads: int) -> float:
    """Return what a thread gets of what another one has written, in bytes per cycle."""
    near = core.passed_bytes_per_cycle
    return near if share_last_cache(core, threads) else min(near, PASSED_AFAR)


class Divisible(ABC):
    """Work of blocks along several loops, one of which the threads divide."""

    config: Config

    @property
    @abstractmethod
    def divisible(self) -> dict[str, tuple[int, int, int]]:
        """The loops that threads can divide: blocks, size of a block, size of all.

        Each thread takes a run of blocks; the last block may be smaller.
        """

    def parallel_loop(self, threads: int) -> str:
        """Return the loop that threads divide, "" for none."""
        if threads == 1:
            return ""
        return self.config.parallel or self._evenest(threads)

    def parallel_loops(self, threads: int) -> list[str]:
        """Return the values of `Config.parallel` that divide the work differently."""
        if threads == 1:
            return [""]
        others = [loop for loop, (blocks, _, _) in self.divisible.items() if blocks > 1]
        return ["", *(loop for loop in others if loop != self._evenest(threads))]

    def share(self, loop: str, threads: int) -> float:
        """Return the part of the work of the busiest thread when `loop` is divided."""
        return _part(*self.divisible[loop], threads)

    def _evenest(self, threads: int) -> str:
        return min(self.divisible, key=lambda loop: self.share(loop, threads))


def _part(blocks: int, size: int, whole: int, threads: int) -> float:
    """Return the part of the work of a thread that takes a run of blocks."""
    return min(1.0, math.ceil(blocks / threads) * size / whole)
