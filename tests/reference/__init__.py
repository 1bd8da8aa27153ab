"""Slow, obviously right numpy versions of what the kernels compute, in double precision.

Every function takes arrays of any float type and returns float64, so that the reference's own
rounding stays far below the tolerance of a float32 comparison.
"""

from .activations import clip, hard_sigmoid, hard_swish, relu, sigmoid, silu
from .layouts import pack_nchwc, unpack_nchwc
from .linear import conv2d, gemm
from .pooling import average_pool, global_average_pool, max_pool
from .recurrent import recurrent

__all__ = [
    "average_pool",
    "clip",
    "conv2d",
    "gemm",
    "global_average_pool",
    "hard_sigmoid",
    "hard_swish",
    "max_pool",
    "pack_nchwc",
    "recurrent",
    "relu",
    "sigmoid",
    "silu",
    "unpack_nchwc",
]
