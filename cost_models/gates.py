"""Where a number for each channel of an image, a gate, is multiplied with the least traffic.

Squeeze and excite multiplies every channel by a number that the whole image decides, so no kernel
that makes the image can do it: another one reads it again, when it has long left L1, and writes it.

The 1x1 layer behind may take the numbers into its weights instead, which are fewer where it has
fewer outputs than the image has pixels. 32 channels of 112x112 are 1.6 MB, the weights to 16 others
2 KB: all in all EfficientNet-B0 takes 0.975 of the time at one thread, 0.95 at two (Zen 3).

The layer that makes the gate may multiply the image in its epilogue. It divides its work by
channels: where the layers before and behind divide the image by rows, most lines come from another
core and go back to it, which a kernel of its own spares.
"""

from __future__ import annotations

from enum import Enum

from tvm_blislike.cost_models.moving import BY_TURNS, bytes_per_cycle, level_holding
from tvm_blislike.cost_models.parallel import divides_rows, passed_bytes_per_cycle
from tvm_blislike.cost_models.roofline import fork_cycles
from tvm_blislike.hardware import Core


class Place(Enum):
    """Where gates are multiplied."""

    EPILOGUE = "by the layer that makes them"
    ROWS = "by a kernel that divides the image by rows"
    WEIGHTS = "into the weights of the layer behind"


def place(
    core: Core, threads: int, rows: int, image_bytes: int, weights_bytes: int | None
) -> Place:
    """Return where the gates of an image are multiplied in the least time.

    Parameters
    ----------
    core : Core
        The target.
    threads : int
        Threads of one inference.
    rows : int
        Of the image.
    image_bytes : int
        All channels of it.
    weights_bytes : int or None
        Of the layer behind, None where it cannot take the gates.
    """
    image = 2 * _moved_cycles(core, threads, image_bytes)
    fork = fork_cycles(core) if threads > 1 else 0.0
    cycles = {Place.EPILOGUE: image, Place.ROWS: image + fork}
    if divides_rows(rows, threads):
        cycles[Place.EPILOGUE] += 2 * _foreign_cycles(core, threads, image_bytes // threads)
    if weights_bytes is not None:
        cycles[Place.WEIGHTS] = _weights_cycles(core, threads, weights_bytes) + fork
    return min(cycles, key=lambda each: cycles[each])


def _weights_cycles(core: Core, threads: int, size: int) -> float:
    """Cycles in which weights come from memory and go to every thread.

    All weights of the model pass by from one call to the next: 480x112 of them take 27 us, 8 GB/s,
    with nothing that would hide it (Zen 3).
    """
    read = size / threads / bytes_per_cycle(core, 0, threads)
    return read + _moved_cycles(core, threads, size) + _foreign_cycles(core, threads, size)


def _moved_cycles(core: Core, threads: int, size: int) -> float:
    """Cycles in which each thread reads or writes its share of so many bytes, twice that in all."""
    level = level_holding(core, 2 * size // threads, threads)
    rate = bytes_per_cycle(core, level, threads)
    return size / threads / (rate if level in (1, 2) else BY_TURNS * rate)


def _foreign_cycles(core: Core, threads: int, size: int) -> float:
    """Cycles in which a thread reads so many bytes that all threads have made, in equal shares."""
    return size * (1 - 1 / threads) / passed_bytes_per_cycle(core, threads)
