"""Cache blocking of GEMM: mc, nc and kc from the caches of a core.

The model is that of Low, Igual, Smith and Quintana-Orti, "Analytical Modeling Is Enough for
High-Performance BLIS", ACM TOMS 43(2), 2016, stated there for the loop order of BLIS and for
three cache levels. In units of ways (a way holds sets * line_bytes bytes), S bytes per element,
and with one way of each cache left to C and to whatever else passes through:

    kc  from L1:  ways_Ar = floor((ways - 1) / (1 + nr / mr)),  kc = ways_Ar * way / (mr * S);
                  the other ways - 1 - ways_Ar hold Br, which stays while panels Ar stream by
    mc  from L2:  ways_Ac = ways - 1 - ceil(kc * nr * S / way), mc = ways_Ac * way / (kc * S)
    nc  from L3:  ways_Bc = ways - 1 - ceil(mc * kc * S / way), nc = ways_Bc * way / (kc * S)

What goes beyond the paper, each explained where it is done: other loop orders (`roles`), too few
ways (`_inner_block`, `_room`), exclusive and victim caches (`_held`), caches shared by threads
(`_Share`), absent levels (`ABSENT_CACHE_BYTES`), and known problem sizes (`_balanced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tvm_blislike.hardware import LINE_BYTES, Cache, Core, dtype_bits

LOOP_ORDERS = ("B3A2C0", "A3B2C0", "C3B2A0", "C3A2B0", "B3C2A0", "A3C2B0")

# A block that no cache holds streams from memory. The larger it is the less often the other
# operand is packed again, but beyond a few thousand columns that gains nothing, while its pages
# must stay within reach of the TLB: 4 MiB is what 1024 entries for 4 KiB pages cover
# (Cortex-A57 and A72). With kc = 340 it gives nc = 3084; BLIS uses 3072 on these cores.
ABSENT_CACHE_BYTES = 4 * 2**20

# Stands in where a core lists no cache at all: the smallest L1 among the described cores.
_ASSUMED_L1 = Cache(level=1, bytes=32768, ways=4, line_bytes=LINE_BYTES)

_DIMENSIONS = {"A": "mk", "B": "kn", "C": "mn"}


class OperandPlace(NamedTuple):
    """Where one operand of a blocking lives, and how much of that level it takes.

    Parameters
    ----------
    operand : str
        `Ac`, `Bc`, `Cc` for a block; `Ar`, `Br`, `Cr` for a micro-panel or register block.
    level : int or None
        0 for registers, else the level of the cache; None for memory.
    bytes : int
        Size of the operand.
    fraction : float or None
        Part of this thread's share of the level; None for memory. Above 1: it does not fit.
    """

    operand: str
    level: int | None
    bytes: int
    fraction: float | None


@dataclass(frozen=True)
class CacheBlocking:
    """Block sizes in elements and the place of every operand, registers first."""

    mc: int
    nc: int
    kc: int
    footprint: tuple[OperandPlace, ...]


class Roles(NamedTuple):
    """What a loop order such as B3A2C0 says of operands and dimensions.

    Parameters
    ----------
    third, second, registers : str
        Operand (`A`, `B` or `C`) blocked for L3, blocked for L2, and kept in registers.
    outer, inner, middle : str
        Dimension (`m`, `n` or `k`) of the three loops over blocks, from the outermost:
        `outer` is shared by the operands of L3 and registers, `inner` is the long loop of the
        micro-kernel, shared by L3 and L2, `middle` is shared by L2 and registers.
    """

    third: str
    second: str
    registers: str
    outer: str
    inner: str
    middle: str


def roles(loop_order: str) -> Roles:
    """Return the operands and dimensions that `loop_order` assigns to each level.

    The digits name the level where an operand is reused: B3A2C0, the order of BLIS, keeps Bc in
    L3 (and its micro-panel Br in L1), Ac in L2 and Cr in registers, with the block loops jc
    (`outer`), pc (`inner`), ic (`middle`). The others follow by renaming: in C3B2A0 a block
    mr x unroll of A stays in registers while the micro-kernel runs along n.

    Raises
    ------
    ValueError
        When `loop_order` is none of `LOOP_ORDERS`.
    """
    if loop_order not in LOOP_ORDERS:
        raise ValueError(f"unknown loop order {loop_order!r}; known: {', '.join(LOOP_ORDERS)}")
    third, second, registers = loop_order[::2]
    (inner,) = set("mnk") - set(_DIMENSIONS[registers])
    outer = _DIMENSIONS[third].replace(inner, "")
    middle = _DIMENSIONS[second].replace(inner, "")
    return Roles(third, second, registers, outer, inner, middle)


def cache_blocking(
    core: Core,
    mr: int,
    nr: int,
    *,
    unroll: int = 4,
    loop_order: str = "B3A2C0",
    threads: int = 1,
    dtype: str = "float32",
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    pinned: Mapping[str, int] | None = None,
) -> CacheBlocking:
    """Return block sizes for a GEMM on `core` (the model stands in the module's docstring).

    Any description of a core is answered: with too few ways, too small or absent caches the
    blocks shrink to one micro-tile and the footprint says what does not fit.

    Parameters
    ----------
    core : Core
        Any number of cache levels; the first three are used.
    mr, nr : int
        Register block of the micro-kernel, in elements.
    unroll : int
        Steps of k that the micro-kernel unrolls; with A or B in registers, the extent of the
        register block along k. kc is a multiple of it where k and the caches allow.
    loop_order : str
        One of `LOOP_ORDERS`.
    threads : int
        Threads at work; those that share a cache divide it.
    dtype : str
        Data type of the packed operands.
    m, n, k : int, optional
        Size of the problem: blocks are clipped to it and cut into equal parts.
    pinned : mapping, optional
        Any of `mc`, `nc`, `kc` fixed by the user (rounded down to whole micro-tiles and clipped
        to the problem, not balanced); the others adapt.

    Returns
    -------
    CacheBlocking
        mc a positive multiple of mr, nc of nr, kc >= 1.

    Raises
    ------
    ValueError
        On an unknown loop order, a key of `pinned` other than these three, or a size below 1.
    """
    role = roles(loop_order)
    tile = {"m": mr, "n": nr, "k": unroll}
    size = {"m": m, "n": n, "k": k}
    fixed = _fixed(pinned)
    _require_positive({"mr": mr, "nr": nr, "unroll": unroll, **size, "threads": threads})
    width = dtype_bits(dtype) / 8
    first, second, third = _shares(core, threads)
    block: dict[str, int] = {}

    def settle(dimension: str, proposed: float) -> None:
        block[dimension] = _settled(
            dimension, int(proposed), tile[dimension], size[dimension], fixed.get(dimension)
        )

    def panel(operand: str) -> int:
        """Bytes of a micro-panel: the tile's extent, but the whole block along `inner`."""
        return int(_area(operand, {**tile, role.inner: block[role.inner]}) * width)

    def whole(operand: str) -> int:
        return int(_area(operand, block) * width)

    settle(role.inner, _inner_block(first, tile[role.outer], tile[role.middle]) / width)
    inner_bytes = block[role.inner] * width
    settle(role.middle, _room(second, panel(role.third)) / inner_bytes)
    settle(role.outer, _room(third, whole(role.second)) / inner_bytes)

    registers = int(_area(role.registers, tile) * width)
    footprint = (
        OperandPlace(f"{role.registers}r", 0, registers, registers / _register_bytes(core)),
        _placed(f"{role.third}r", panel(role.third), first),
        _placed(f"{role.second}r", panel(role.second), first),
        _placed(f"{role.second}c", whole(role.second), second),
        _placed(f"{role.third}c", whole(role.third), third),
    )
    return CacheBlocking(block["m"], block["n"], block["k"], footprint)


class _Share(NamedTuple):
    """One thread's part of a cache: all its ways, but of each way only its part.

    Dividing sets rather than ways leaves every thread the associativity that the model needs;
    the capacity is the same. A physically indexed cache mixes the threads over all sets anyway.
    """

    level: int
    ways: int
    way_bytes: float
    fills_on_eviction: bool

    @property
    def bytes(self) -> float:
        return self.ways * self.way_bytes


def _shares(core: Core, threads: int) -> tuple[_Share, _Share | None, _Share | None]:
    """Return the first three levels; levels are counted, so a missing number leaves no gap."""
    caches = [c for c in sorted(core.caches, key=lambda c: c.level) if c.bytes > 0]
    shares = [_share(c, threads) for c in caches or [_ASSUMED_L1]]
    first, second, third = (*shares, None, None)[:3]
    return first, second, third


def _share(cache: Cache, threads: int) -> _Share:
    ways = max(cache.ways, 1)
    sharers = max(min(threads, cache.shared_by), 1)
    evictions = cache.policy in ("exclusive", "victim")
    return _Share(cache.level, ways, cache.bytes / ways / sharers, evictions)


def _inner_block(share: _Share, stationary: int, streaming: int) -> float:
    """Return the bytes per row of a micro-panel that L1 allows (kc * S for B3A2C0).

    Parameters
    ----------
    share : _Share
        First-level cache.
    stationary, streaming : int
        Rows of the micro-panel that stays (nr for B3A2C0) and of the one that streams (mr).
    """
    ways = (share.ways - 1) * streaming // (stationary + streaming)  # ways_Ar of the paper
    if ways >= 1:
        return ways * share.way_bytes / streaming
    if share.ways >= 2:
        # The paper's floor gives 0: always with 2 ways (Cortex-A57, A72), and with 4 when
        # nr > 2 mr. Then the stationary panel gets all ways but one, and the streaming panel
        # shares the last one with C: each of its lines is used once per pass, and C is touched
        # only when a micro-kernel begins and ends.
        return min((share.ways - 1) * share.way_bytes / stationary, share.way_bytes / streaming)
    # Direct-mapped: nothing can be set apart, so plan for half of the cache.
    return share.bytes / 2 / (stationary + streaming)


def _room(share: _Share | None, smaller_level: int) -> float:
    """Return the bytes that a block may take in the second or third level.

    Parameters
    ----------
    share : _Share or None
        The cache; None where the core has none.
    smaller_level : int
        Bytes of what the next smaller level was planned to hold.
    """
    if share is None:
        return ABSENT_CACHE_BYTES
    held = _held(share, smaller_level)
    ways = share.ways - 1 - -(-held // share.way_bytes)
    if ways >= 1:
        return ways * share.way_bytes
    return max(share.bytes - held, 0) / 2  # too few ways to set one apart: as in a direct-mapped


def _held(share: _Share, smaller_level: int) -> int:
    """Return how much of `share` copies of the smaller level take.

    A cache that is filled on the way in holds them too. An exclusive or victim cache (L3 of Zen
    and Skylake-SP, L2 of Cortex-A53) does not: subtracting Ac there gives the negative nc that
    the published formulas yield for Skylake-SP.
    """
    return 0 if share.fills_on_eviction else smaller_level


def _settled(dimension: str, proposed: int, tile: int, size: int | None, fixed: int | None) -> int:
    """Return the block size along one dimension: whole tiles, clipped to the problem.

    Along k a tile is only the unrolling, so that a shorter block is possible; packed panels of
    A, B and C are padded to whole mr and nr, so that m and n are not clipped below one tile.
    """
    wanted = proposed if fixed is None else fixed
    if dimension == "k" and (fixed is not None or wanted < tile):
        tile = 1
    block = max(wanted // tile, 1) * tile
    if size is None:
        return block
    whole = size if dimension == "k" else -(-size // tile) * tile
    if block >= whole or fixed is not None:
        return min(block, whole)
    return _balanced(block, size, tile)


def _balanced(block: int, size: int, tile: int) -> int:
    """Return the block that cuts `size` into as many blocks, of equal length but for rounding.

    k = 520 with kc = 512 becomes 2 x 260 rather than 512 + 8: the short block would pay for
    loading and storing C without the work to hide it.
    """
    blocks = -(-size // block)
    return -(-size // (blocks * tile)) * tile


def _area(operand: str, extent: Mapping[str, int]) -> int:
    first, second = _DIMENSIONS[operand]
    return extent[first] * extent[second]


def _placed(operand: str, size: int, share: _Share | None) -> OperandPlace:
    if share is None:
        return OperandPlace(operand, None, size, None)
    return OperandPlace(operand, share.level, size, size / share.bytes)


def _register_bytes(core: Core) -> float:
    return max(core.vector_registers * core.vector_bits, 1) / 8


def _fixed(pinned: Mapping[str, int] | None) -> dict[str, int]:
    """Return the pinned block sizes by dimension, checked."""
    known = {"mc": "m", "nc": "n", "kc": "k"}
    unknown = sorted(set(pinned or {}) - set(known))
    if unknown:
        raise ValueError(f"cannot pin {', '.join(unknown)}; only mc, nc and kc can be pinned")
    _require_positive(dict(pinned or {}))
    return {known[name]: value for name, value in (pinned or {}).items()}


def _require_positive(values: Mapping[str, int | None]) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
