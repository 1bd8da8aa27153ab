"""What the library knows of a processor core: facts only, no policy.

Policy (how much of which cache an operand may take) lives in `cost_models`,
what was measured lives in the tuning records.
"""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import corefile
from .corefile import PASSED_AFAR, HardwareError
from .isa import Isa

# Size of a cache line of nearly all cores: for code that does not know its core, and for cores
# without a described cache.
LINE_BYTES = 64
_FOLDER = Path(__file__).parent


class UnknownCoreError(HardwareError):
    """No TOML has the wanted name."""


@dataclass(frozen=True)
class Cache:
    """One level of data (or unified) cache, as seen from one core.

    Parameters
    ----------
    level : int
        1 for the level next to the registers.
    bytes : int
        Capacity of one instance of the cache.
    ways : int
        Associativity.
    line_bytes : int
        Size of one line.
    bytes_per_cycle : float
        What one core reads from it while it computes, sustained, in bytes per cycle.
    shared_by : int
        Cores that share one instance.
    policy : str
        Relation to the next smaller level. `inclusive` holds every line of it,
        `non-inclusive` is filled on the way in but may drop lines; `exclusive` and
        `victim` get a line only when the smaller level evicts it.
    all_bytes_per_cycle : float or None
        What the cores that share one instance read from it together, bytes per cycle; None when
        each of them reads as much as one alone.
    kept_of_half : float
        Share of a stream over half of the capacity that is still there when it comes round again:
        1 unless other guests of the machine use the cache, too.
    """

    level: int
    bytes: int
    ways: int
    line_bytes: int
    bytes_per_cycle: float
    shared_by: int = 1
    policy: str = "inclusive"
    all_bytes_per_cycle: float | None = None
    kept_of_half: float = 1.0

    @property
    def sets(self) -> int:
        """Number of sets: bytes / (ways * line_bytes)."""
        return self.bytes // (self.ways * self.line_bytes)


@dataclass(frozen=True)
class Core:
    """One processor core with the caches it sees.

    Parameters
    ----------
    name : str
        Name of the TOML without its suffix, or `native-NAME` for the present machine.
    source : tuple of str
        Documents the facts were taken from.
    isa : Isa
        Instruction set of the micro-kernels it runs.
    vector_bits : int
        Width of one vector register.
    vector_registers : int
        Architectural vector registers.
    fma_per_cycle : float
        Full-width vector fused multiply-adds started per cycle.
    fma_latency : int
        Cycles from one FMA to the next on the same accumulator (the latency that a
        micro-kernel must hide), with late accumulator forwarding where the core has it.
    loads_per_cycle, stores_per_cycle : float
        Full-width vector loads and stores per cycle that hit the first-level cache.
    caches : tuple of Cache
        Data caches by rising level; any number of levels.
    memory_gb_per_s : float
        Memory bandwidth of the whole chip, 1e9 bytes per second.
    memory_core_gb_per_s : float
        What one core reads from memory while it computes, 1e9 bytes per second.
    element_load_cycles, vector_load_cycles : float
        Cycles that one load takes from the FMAs beside it, wherever it finds its line: of an
        element (broadcast), of a whole vector. 0 where loads and FMAs do not disturb each other.
    reorder_window : int or None
        Instructions in flight (reorder buffer); None on a core that issues in order.
    loads_in_flight, memory_ns : int, float or None
        Loads in flight (load queue), and nanoseconds until one is back from memory that prefetchers
        have seen coming; None where nobody measured what waits for that.
    lines_in_flight : int
        Lines that may be missing in the first-level cache at a time.
    fork_join_us : float
        Microseconds to hand work to the other threads and wait for them.
    passed_bytes_per_cycle : float
        Bytes per cycle at which a core reads what another one that shares a cache with it has just
        written, over what it had read there before, while that one does the same.
    ghz : float
        Clock under full-width vector load.
    mtriple, mcpu : str
        LLVM target triple and processor.
    mattr : tuple of str
        LLVM features added (`+name`) or removed (`-name`).
    cores : int
        Physical cores of this kind on the chip (for the present machine: usable ones).
    notes : tuple of str
        What was assumed rather than known.
    issue_per_cycle : int or None
        Instructions that start (in order) or are dispatched (out of order) per cycle.
    in_order : bool
        Whether an instruction waits for those before it to start.
    features : tuple of str
        Extensions of the instruction set (`Isa.features`) that micro-kernels may require. "fp16":
        vectors compute in half precision, with as many FMAs per cycle.
    recognized_by : tuple of str
        What processors of this design call themselves, see `hardware.keys`.
    stands_for : tuple of str
        The same for other designs that have no file of their own and resemble this one most.
    element_loads_per_cycle : float or None
        Loads of one element to all lanes (broadcasts) per cycle; None: as many as of vectors.
    vectors_per_cycle : float or None
        Full-width vector instructions started per cycle where there are units beyond those of FMAs,
        and products of integers have as many as FMAs; None: as many as FMAs.
    bf16_per_cycle : float or None
        Full-width vector products of pairs of bfloat16 started per cycle; None: as many as FMAs, or
        there are none.
    broadcasts_per_cycle : float or None
        Full-width products of pairs of bfloat16 and broadcasts of a pair by instructions of their
        own, together, started per cycle, where those take units of the products; None: they take
        none.
    follows_rows : bool
        Whether rows of memory that loads read side by side come from L2 as early as one panel does.
    ahead_bytes : int
        How far ahead of its use a stream of bytes from memory is best asked for where loops convert
        what they load; of wider elements so many times less.
    prefetch_streams : int
        Places of a panel of weights from which its lines are asked for by turns, fastest. 1 where
        requests in order come in time; more where each of several slow streams is one that the
        prefetchers of L2 get ahead of.
    l2_crowding : float
        Part of its time that work loses, for each L2 that its operands take beyond what other data
        leaves them: small where the level beyond is near.
    spilled_passes : float
        How many times as long per vector straight-line code takes whose vectors are more than the
        registers: 1 where loads and stores hide behind arithmetic.
    is_virtual : bool
        Whether a hypervisor decides which cores the threads run on: those that are said to share a
        cache may share none, now or later.
    """

    name: str
    source: tuple[str, ...]
    isa: Isa
    vector_bits: int
    vector_registers: int
    fma_per_cycle: float
    fma_latency: int
    loads_per_cycle: float
    stores_per_cycle: float
    caches: tuple[Cache, ...]
    memory_gb_per_s: float
    memory_core_gb_per_s: float
    element_load_cycles: float
    vector_load_cycles: float
    lines_in_flight: int
    fork_join_us: float
    ghz: float
    mtriple: str
    mcpu: str
    mattr: tuple[str, ...]
    cores: int
    notes: tuple[str, ...] = ()
    issue_per_cycle: int | None = None
    reorder_window: int | None = None
    loads_in_flight: int | None = None
    memory_ns: float | None = None
    in_order: bool = False
    features: tuple[str, ...] = ()
    recognized_by: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()
    element_loads_per_cycle: float | None = None
    vectors_per_cycle: float | None = None
    bf16_per_cycle: float | None = None
    broadcasts_per_cycle: float | None = None
    follows_rows: bool = True
    ahead_bytes: int = 2048
    prefetch_streams: int = 4
    l2_crowding: float = 0.6
    spilled_passes: float = 1.7
    passed_bytes_per_cycle: float = PASSED_AFAR
    is_virtual: bool = False

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # A part tells cores apart as well as all of it, and caches of the cost models ask often.
        return hash((self.name, self.mcpu, self.ghz))

    def computes(self, dtype: str) -> bool:
        """Return whether its vector instructions multiply and add floats of type `dtype`."""
        return dtype == "float32" or (dtype == "float16" and "fp16" in self.features)

    def lanes(self, dtype: str = "float32") -> int:
        """Return the elements of `dtype` in one vector register."""
        return self.vector_bits // dtype_bits(dtype)

    def cache(self, level: int) -> Cache | None:
        """Return the cache of that level, None where the core has none."""
        return self._cache_of.get(level)

    @functools.cached_property
    def _cache_of(self) -> dict[int, Cache]:
        return {cache.level: cache for cache in reversed(self.caches)}

    @property
    def line_bytes(self) -> int:
        """Size of a line of the nearest cache."""
        return self.caches[0].line_bytes if self.caches else LINE_BYTES

    def target_config(self, threads: int | None = None) -> dict[str, Any]:
        """Return the dictionary that `tvm.target.Target` takes.

        Parameters
        ----------
        threads : int, optional
            Value of `num-cores`; all cores when not given.
        """
        config: dict[str, Any] = {"kind": "llvm", "mtriple": self.mtriple, "mcpu": self.mcpu}
        if self.mattr:
            config["mattr"] = list(self.mattr)
        config["num-cores"] = threads or self.cores
        return config

    def peak_gflops(self, threads: int = 1, dtype: str = "float32") -> float:
        """Return the FMA peak, 1e9 operations per second, of `threads` cores.

        Two operations per lane and FMA. Threads beyond the number of cores add nothing.
        """
        return 2 * self.lanes(dtype) * self.fma_per_cycle * self.ghz * min(threads, self.cores)

    @staticmethod
    def named(name: str) -> Core:
        """Return the core of that name (see `names`).

        Raises
        ------
        UnknownCoreError
            When there is no such core; the message suggests the nearest names.
        """
        if name not in names():
            raise UnknownCoreError(_unknown(name))
        return _described(name)

    @staticmethod
    def from_toml(path: str | Path) -> Core:
        """Return the core that a TOML file describes.

        Raises
        ------
        CoreFileError
            When the file cannot be read or a field is missing, unknown or senseless.
        """
        table = corefile.read(Path(path))
        caches = tuple(Cache(**cache) for cache in table.pop("caches"))
        return Core(**table, caches=caches)

    def to_toml(self) -> str:
        """Return the text of a TOML file that `from_toml` reads back unchanged."""
        return corefile.text_of(self)


@functools.cache
def _described(name: str) -> Core:
    return Core.from_toml(_FOLDER / f"{name}.toml")


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all cores described in this package, sorted."""
    return tuple(sorted(p.stem for p in _FOLDER.glob("*.toml")))


@functools.cache
def described_cores() -> tuple[Core, ...]:
    """Return every core described in this package, by rising name."""
    return tuple(Core.named(name) for name in names())


@functools.cache
def dtype_bits(dtype: str) -> int:
    """Return the bits of one element in memory: the number in the name of `dtype`, 8 for `bool`.

    Raises
    ------
    ValueError
        When the name carries no number, as in `handle`.
    """
    if dtype == "bool":
        return 8
    found = re.match(r"[a-z]+(\d+)", dtype)
    if not found:
        raise ValueError(f"data type {dtype!r} does not state its bits, as float32 or int8 does")
    return int(found.group(1))


def _unknown(name: str) -> str:
    wanted = name.lower()
    near = [n for n in names() if len(wanted) > 1 and wanted in n]
    near = near or difflib.get_close_matches(wanted, names(), n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"unknown core {name!r}.{hint} Known: {', '.join(names())}"
