"""Register-blocked micro-kernels: one file per ISA and data type, one literal list in each."""

from __future__ import annotations

import functools

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import (
    amx_bf16,
    amx_u8s8,
    avx2_bits,
    avx2_f32,
    avx2_masked,
    avx2_s16,
    avx2_stored,
    avx2_u8s8,
    avx512_bf16,
    avx512_bf16_stored,
    avx512_bits,
    avx512_f16,
    avx512_f32,
    avx512_lookup,
    avx512_s16,
    avx512_stored,
    avx512_u8s8,
    neon_bits,
    neon_f16,
    neon_f32,
    neon_lookup,
    neon_mmla,
    neon_s8,
    neon_s8_pairs,
    neon_stored,
)
from tvm_blislike.microkernels.intrin import shape_named, standalone, update_intrin
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.lookups import Lookup
from tvm_blislike.microkernels.update_shape import UpdateShape
from tvm_blislike.model.types import FLOAT32, Types, kernel_name

KERNELS: tuple[Microkernel, ...] = avx512_f32.KERNELS + avx2_f32.KERNELS + neon_f32.KERNELS
# fp16, of cores with the feature "fp16".
HALF_KERNELS: tuple[Microkernel, ...] = avx512_f16.KERNELS + neon_f16.KERNELS
# Products of other operands, several steps of k at once.
GROUPED_KERNELS: tuple[Microkernel, ...] = (
    *(*avx512_bf16.KERNELS, *avx512_u8s8.KERNELS, *avx512_s16.KERNELS),
    *(*amx_u8s8.KERNELS, *amx_bf16.KERNELS),
    *(*avx2_u8s8.KERNELS, *avx2_masked.KERNELS, *avx2_s16.KERNELS),
    *(*neon_s8.KERNELS, *neon_s8_pairs.KERNELS),
    *neon_mmla.KERNELS,
)

# Products of signs, 32 of them in a word.
BIT_KERNELS: tuple[Microkernel, ...] = (
    *avx512_bits.KERNELS,
    *avx2_bits.KERNELS,
    *neon_bits.KERNELS,
)

# Products of fp32, or of bfloat16, whose B lies in memory in fewer bytes.
STORED_KERNELS: tuple[Microkernel, ...] = (
    *avx512_stored.KERNELS,
    *avx512_bf16_stored.KERNELS,
    *avx2_stored.KERNELS,
    *neon_stored.KERNELS,
)

_ALL = (*KERNELS, *HALF_KERNELS, *GROUPED_KERNELS, *BIT_KERNELS, *STORED_KERNELS)
_BY_NAME = {kernel.name: kernel for kernel in _ALL}
_BY_BLOCK = {(k.isa.name, k.types.product, k.mr, k.nr, k.ks): k for k in _BY_NAME.values()}
# Types of products that there are micro-kernels for.
TYPES = tuple(dict.fromkeys(kernel.types for kernel in _BY_NAME.values()))
# K loops that are functions of LLVM, by name.
LOOPS = {kernel.loop.name: kernel.loop for kernel in _BY_NAME.values() if kernel.loop}
# The same on tile registers.
TILE_LOOPS = {kernel.tiles.name: kernel.tiles for kernel in _BY_NAME.values() if kernel.tiles}
# Vectors of bytes looked up in tables.
LOOKUPS: tuple[Lookup, ...] = (avx512_lookup.LOOKUP, neon_lookup.LOOKUP)
# Functions of LLVM that products call, by name.
FUNCTIONS = dict(pair for kernel in _BY_NAME.values() for pair in kernel.product.functions)


def kernels_for(
    core: Core, types: Types = FLOAT32, panels: bool = False, superseded: bool = False
) -> tuple[Microkernel, ...]:
    """Return the micro-kernels offered to a core for the types of a product.

    Parameters
    ----------
    panels : bool
        A is packed into panels: those that can do with nothing else are offered too.
    superseded : bool
        So are those for which the core has better ones, of values that better ones do not take.
    """
    features = frozenset(core.features)
    lacking = frozenset(name[1:] for name in core.mattr if name.startswith("-"))
    return _offered(core.isa.name, features, lacking, types.product, panels, superseded)


@functools.cache
def _offered(
    isa: str,
    features: frozenset[str],
    lacking: frozenset[str],
    product: tuple[str, str, str],
    panels: bool,
    superseded: bool,
) -> tuple[Microkernel, ...]:
    same = (k for k in _BY_NAME.values() if (k.isa.name, k.types.product) == (isa, product))
    known = (k for k in same if features >= {*k.features} and not lacking & {*k.needs})
    best = (k for k in known if superseded or not features & {*k.superseded_by})
    return tuple(k for k in best if panels or not k.panels_only)


def get_kernel(name: str) -> Microkernel:
    """Return the micro-kernel called `name`, such as `avx512_f32_14x32`.

    Raises
    ------
    KeyError
        When no list offers it.
    """
    if name not in _BY_NAME:
        raise KeyError(f"no micro-kernel {name!r}; the lists are in tvm_blislike/microkernels")
    return _BY_NAME[name]


def kernel_of(core: Core, mr: int, nr: int, types: Types = FLOAT32, ks: int = 1) -> Microkernel:
    """Return the micro-kernel of that shape.

    Raises
    ------
    KeyError
        As for `get_kernel`.
    """
    found = _BY_BLOCK.get((core.isa.name, types.product, mr, nr, ks))
    return found or get_kernel(kernel_name(core.isa.name, mr, nr, types, ks))


def lookup_for(core: Core) -> Lookup | None:
    """Return how a core looks up vectors of bytes, None where a byte is a load of its own."""
    offered = (x for x in LOOKUPS if x.isa is core.isa and {*x.features} <= {*core.features})
    return next(offered, None)


def register_named(intrin: str) -> None:
    """Register the TensorIntrin of that name, if it is one of ours.

    Raises
    ------
    KeyError
        When no list offers its micro-kernel.
    """
    use = shape_named(intrin)
    if use is not None:
        update_intrin(get_kernel(use[0]), use[1])


__all__ = [
    "BIT_KERNELS",
    "FUNCTIONS",
    "GROUPED_KERNELS",
    "HALF_KERNELS",
    "KERNELS",
    "LOOKUPS",
    "LOOPS",
    "STORED_KERNELS",
    "TILE_LOOPS",
    "TYPES",
    "Lookup",
    "Microkernel",
    "UpdateShape",
    "get_kernel",
    "kernel_name",
    "kernel_of",
    "kernels_for",
    "lookup_for",
    "register_named",
    "standalone",
    "update_intrin",
]
