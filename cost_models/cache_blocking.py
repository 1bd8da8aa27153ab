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
ways (`inner_block`, `room`), exclusive and victim caches (`held`), caches shared by threads
(`Share`), absent levels (`ABSENT_CACHE_BYTES`), known problem sizes (`_balanced`), and panels that
stream from L2:

The paper's kc keeps Br in L1, since loads from L2 would hold the FMAs up. A block of mr x nr wants
(mr + nr) * S bytes for each mr * nr / (lanes * fma_per_cycle) cycles. Where L2 delivers that
(`_streams`), L1 does not bound kc, and traffic beyond L2 decides (`_balanced_depth`). Per element
of C, and P = k / kc blocks of k, it is

    2 (P - 1)        C is stored by all blocks but the last and loaded by all but the first
    k / mc           B passes once per block of A

and mc * kc is what L2 holds, W elements. The sum is least for kc = sqrt(2 W): 677 for 1 MiB of 8
ways, 338 for 256 KiB (BLIS, tuned by hand: 640 on Cortex-A57 and Neoverse N1, 384 on Skylake-X, 256
on Haswell). L2 then also holds the next panel of B, which is fetched while the present one is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tvm_blislike.cost_models.cache_room import Share, held, inner_block, room, room_text, shares
from tvm_blislike.hardware import Core, dtype_bits

LOOP_ORDERS = ("B3A2C0", "A3B2C0", "C3B2A0", "C3A2B0", "B3C2A0", "A3C2B0")

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
    """Block sizes in elements and why they are no larger.

    Parameters
    ----------
    mc, nc, kc : int
        The blocks.
    footprint : tuple of OperandPlace
        The place of every operand, registers first.
    bounds : mapping
        For `mc`, `nc` and `kc` what bounds it: a cache with its ways, the problem, a pin.
    """

    mc: int
    nc: int
    kc: int
    footprint: tuple[OperandPlace, ...]
    bounds: Mapping[str, str]

    def explained(self, **used: int) -> tuple[str, ...]:
        """Say of blocks in use how large the model's are, and what bounds those."""
        return tuple(
            f"{name} = {size}, by the model {getattr(self, name)}: {self.bounds[name]}"
            for name, size in used.items()
        )

    def places(self) -> tuple[str, ...]:
        """Say where the operands live, and how much of a thread's share they take."""
        return tuple(
            f"{place.operand} {place.bytes:,} bytes in "
            + ("memory" if place.fraction is None else _share_text(place))
            for place in self.footprint
        )


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
    first, second, third = shares(core, threads)
    streams = _streams(core, role, mr, nr, second, dtype)
    block: dict[str, int] = {}
    bounds: dict[str, str] = {}

    def settle(dimension: str, proposed: float, bound: str) -> None:
        whole, pin = size[dimension], fixed.get(dimension)
        block[dimension] = _settled(dimension, int(proposed), tile[dimension], whole, pin)
        if whole is not None and block[dimension] >= whole:
            bound = f"all of {dimension}"
        bounds[f"{dimension}c"] = bound if pin is None else "pinned"

    def panel(operand: str) -> int:
        """Bytes of a micro-panel: the tile's extent, but the whole block along `inner`."""
        return int(_area(operand, {**tile, role.inner: block[role.inner]}) * width)

    def whole(operand: str) -> int:
        return int(_area(operand, block) * width)

    if streams:
        depth = _balanced_depth(second, tile, size, role, width)
        settle(role.inner, depth, "traffic of C and of the panels beyond L2 in balance")
    else:
        depth = inner_block(first, tile[role.outer], tile[role.middle]) / width
        settle(role.inner, depth, f"L1: {role.third}r stays beside a passing {role.second}r")
    inner_bytes = block[role.inner] * width
    # Panels of a pinned length may be too long for L1, and stream as well.
    streams = streams or panel(role.third) + panel(role.second) > first.bytes
    # The next panel is on its way to L2 while the present one is used.
    taken = 2 * panel(role.third) if streams else held(second, panel(role.third))
    settle(role.middle, room(second, taken) / inner_bytes, room_text(second, taken))
    taken = held(third, whole(role.second))
    settle(role.outer, room(third, taken) / inner_bytes, room_text(third, taken))

    registers = int(_area(role.registers, tile) * width)
    near = second if streams and second is not None else first
    footprint = (
        OperandPlace(f"{role.registers}r", 0, registers, registers / _register_bytes(core)),
        _placed(f"{role.third}r", panel(role.third), near),
        _placed(f"{role.second}r", panel(role.second), near),
        _placed(f"{role.second}c", whole(role.second), second),
        _placed(f"{role.third}c", whole(role.third), third),
    )
    return CacheBlocking(block["m"], block["n"], block["k"], footprint, bounds)


def _streams(core: Core, role: Roles, mr: int, nr: int, second: Share | None, dtype: str) -> bool:
    """Whether L2 delivers both panels as fast as the FMAs take them.

    Not to a core that issues in order, which waits for each line. With A or B in registers it is C
    that streams, in both directions: the paper's rule stays.
    """
    if second is None or core.in_order or role.registers != "C":
        return False
    wanted = (mr + nr) * dtype_bits(dtype) / 8
    return wanted * core.lanes(dtype) * core.fma_per_cycle <= second.bytes_per_cycle * mr * nr


def _balanced_depth(
    share: Share,
    tile: Mapping[str, int],
    size: Mapping[str, int | None],
    role: Roles,
    width: float,
) -> float:
    """Return the kc of least traffic beyond L2 (the module's docstring)."""
    elements = room(share, 0) / width
    # At least two panels of B and one of A.
    most = max(elements / (2 * tile[role.outer] + tile[role.middle]), 1)
    ideal = min(math.sqrt(2 * elements), most)
    k, m = size[role.inner], size[role.middle]
    if k is None:
        return ideal

    def traffic(blocks: int) -> float:
        depth = math.ceil(k / blocks)
        block = room(share, 2 * depth * tile[role.outer] * width) / width / depth
        block = max(block // tile[role.middle], 1) * tile[role.middle]
        passes = 1 / block if m is None else math.ceil(m / block) / m
        return 2 * (blocks - 1) + k * passes

    # Whole blocks of m make the sum uneven around its least value.
    counts = range(math.ceil(k / most), 2 * math.ceil(k / ideal) + 1)
    unroll = tile[role.inner]
    depth = math.ceil(k / min(counts, key=traffic) / unroll) * unroll
    # Equal parts in whole steps may be longer than what fits.
    return min(depth, most)


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


def _placed(operand: str, size: int, share: Share | None) -> OperandPlace:
    if share is None:
        return OperandPlace(operand, None, size, None)
    return OperandPlace(operand, share.level, size, size / share.bytes)


def _share_text(place: OperandPlace) -> str:
    level = f"L{place.level}" if place.level else "registers"
    return f"{level}, {100 * (place.fraction or 0.0):.0f} % of a thread's share"


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
