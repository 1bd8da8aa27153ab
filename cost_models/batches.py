"""Predicted time around the kernels of a batch: calls, and images that leave the caches.

The estimate of a layer takes the caches as free for it. What passes between the layer that wrote an
image and the one that reads it is not part of it, nor are other operators: tensors of one image
stay near where those of a batch go to L3 or memory, and that is what depth first over images saves.
"""

from __future__ import annotations

from tvm_blislike.cost_models.moving import beyond_l2_cycles, level_holding
from tvm_blislike.cost_models.roofline import clock_hz, fork_cycles
from tvm_blislike.cost_models.transforms import CALL_SECONDS, transform_seconds
from tvm_blislike.hardware import Core

# Part of a cache whose lines are still there when they are read again, of so many that pass. Zen 4
# (32 MiB of L3): a stream of 16 MiB comes at 0.84 of the speed of smaller ones, one of 32 at half.
KEPT = 0.7
# A call of a function of the virtual machine with views of its inputs.
_GROUP_SECONDS = 3e-6
# A view of a tensor that a kernel writes into, which leaves nothing of a concatenation
# (DenseNet-121 on Zen 3: 4 us, of which the clock of the profile is a part).
VIEW_SECONDS = 3e-6
# Of a batch whose size is open: a cut this much slower than the fastest is as good, and the whole
# batch at once may be this much faster before each size gets kernels of its own.
NEARLY, MOST_LOSS = 1.03, 1.04


def kernel_seconds(written: int, core: Core, threads: int) -> float:
    """Return the time of calling one kernel, and of what it leaves beyond L2.

    Parameters
    ----------
    written : int
        Bytes of what it computes.
    """
    return CALL_SECONDS + _fork_seconds(core, threads) + write_seconds(written, core, threads)


def write_seconds(size: int, core: Core, threads: int) -> float:
    """Return the time of writing a tensor of `size` bytes, whose lines come from memory and go.

    Concatenations of DenseNet-121, batch 8 by two threads of Zen 3, read and write 326 MB in
    31.8 ms: three times that are 31 GB a second, where a stream gets 28.
    """
    part = size / threads
    level = level_holding(core, int(part), threads)
    ways = 1 if level else 2
    return ways * part * beyond_l2_cycles(core, level) / clock_hz(core)


def read_seconds(size: float, passed: float, core: Core, threads: int) -> float:
    """Return the time of reading a tensor that was used before `passed` bytes, itself among them.

    Parameters
    ----------
    size : float
        Bytes of the tensor.
    """
    level = level_holding(core, int(passed / threads / KEPT), threads)
    return size / threads * beyond_l2_cycles(core, level) / clock_hz(core)


def joining_seconds(
    elements: int, dtype: str, is_laid_out: bool, images: int, core: Core, threads: int
) -> float:
    """Return the time of putting a tensor together from the parts of groups of images.

    Parameters
    ----------
    elements, dtype
        Of the whole tensor.
    is_laid_out : bool
        Whether it may lie in another layout on either side: then it is moved twice more.
    images : int
        Groups.
    """
    moves = 3 if is_laid_out else 1
    return moves * transform_seconds(elements, core, threads, dtype) + images * (
        CALL_SECONDS + _GROUP_SECONDS + _fork_seconds(core, threads)
    )


def _fork_seconds(core: Core, threads: int) -> float:
    return fork_cycles(core) / clock_hz(core) if threads > 1 else 0.0
