"""Whether LLVM keeps a register block in registers, as its machine code says.

How LLVM orders loads and what it keeps in registers depends on its version, on the processor that
it compiles for, and on the loops around a block: no formula tells. So blocks are compiled inside
small nests of each algorithm and the stack accesses of their k loops are counted (`passes.spills`).
This file only knows what was found: for the described cores in `spills.json`, for others in a cache
of the user. Where nothing is known a cautious rule decides.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from tvm_blislike.files import write_text
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.model import validity
from tvm_blislike.model.types import Types
from tvm_blislike.tvm_seams.machine_code import llvm_version

SHIPPED = Path(__file__).with_name("spills.json")
# Stack accesses per multiply-add that do not count: one for fifty is lost among other loads. Where
# instructions issue in order nothing starts beside a load, so that each one counts.
MOST_ACCESSES = 0.02

# Kind of nest -> block -> stack accesses per multiply-add. Blocks that have none are left out.
Found = dict[str, dict[str, float]]
# Data types -> instruction set and order of issue -> processor.
Table = dict[str, dict[str, dict[str, Found]]]


def keeps_registers(
    core: Core, kernel: Microkernel, nest: str, otherwise: bool | None = None
) -> bool:
    """Whether a block stays in registers in a kind of nest.

    Of a processor that nobody has asked about, the worst of its instruction set is assumed.

    Parameters
    ----------
    nest : str
        As `model.nest.Nest` names it.
    otherwise : bool, optional
        What to assume of a nest that nobody has compiled; None: that two spare registers will do.
    """
    if kernel.own_loop:
        return True
    known = [found[nest] for found in _nearest(core, kernel.types) if nest in found]
    if known:
        most = 0.0 if core.in_order else MOST_ACCESSES
        return max(found.get(block_name(kernel), 0.0) for found in known) <= most
    if otherwise is not None:
        return otherwise
    return not kernel.is_tight


def _nearest(core: Core, types: Types) -> list[Found]:
    own = found_for(core, types)
    return [own] if own else alike(core, types)


def block_name(kernel: Microkernel) -> str:
    """Return the name of a block in the files: "14x32", with its k group "8x12x4"."""
    return f"{kernel.mr}x{kernel.nr}{f'x{kernel.ks}' if kernel.ks > 1 else ''}"


def in_doubt(kernels: Iterable[Microkernel]) -> list[Microkernel]:
    """Return the blocks that are worth compiling: others leave a quarter of the registers.

    Where elements of A come from vector registers, half: a block in place holds vectors along k of
    its rows, and in fp16 they come from the lower sixteen registers only.
    """

    def may_spill(kernel: Microkernel) -> bool:
        isa = kernel.isa
        if isa.lane_operand:
            return 2 * max(kernel.registers, kernel.registers_in_place) > isa.vector_registers
        return 4 * kernel.registers > 3 * isa.vector_registers

    return [k for k in kernels if not k.own_loop and may_spill(k)]


# --- where it is kept ------------------------------------------------------------------------


@functools.cache
def key_of(core: Core, types: Types) -> tuple[str, str, str]:
    """Return what machine code of micro-kernels depends on beside versions, as keys of a `Table`.

    Features that kernels require are those of their types; other extensions do not enter a k loop.
    """
    known = {*core.isa.mattr, *(f"-{llvm}" for llvm, _ in core.isa.optional)}
    known |= {f"{sign}{feature.llvm}" for feature in core.isa.features for sign in "+-"}
    own = sorted(set(core.mattr) - known)
    kind = f"{core.isa.name}, in order" if core.in_order else core.isa.name
    return " ".join(dict.fromkeys(types.product)), kind, " ".join((core.mcpu, *own))


def versions() -> dict[str, str]:
    """Return the versions that facts hold for: of this package, TVM, and its LLVM."""
    return validity.versions() | {"llvm": str(llvm_version())}


def found_for(core: Core, types: Types) -> Found:
    """Return what is known of a core's blocks by kind of nest; nothing where nobody asked."""
    return _found(*key_of(core, types))


def is_shipped(core: Core, types: Types) -> bool:
    """Return whether the package has facts of a core's blocks, of today's versions."""
    product, kind, processor = key_of(core, types)
    return processor in read(SHIPPED).get(product, {}).get(kind, {})


def alike(core: Core, types: Types) -> list[Found]:
    """Return what is known of the described processors that issue in the same order."""
    product, kind, _ = key_of(core, types)
    return list(read(SHIPPED).get(product, {}).get(kind, {}).values())


@functools.cache
def _found(product: str, kind: str, processor: str) -> Found:
    tables = read(SHIPPED), read(cache_path())
    shipped, own = (t.get(product, {}).get(kind, {}).get(processor, {}) for t in tables)
    return own | shipped  # What a user counted comes from before a file that was shipped anew.


def cache_path() -> Path:
    """Return the user's file of facts for today's versions."""
    marks = "-".join(versions().values())
    return platformdirs.user_cache_path("tvm-blislike", appauthor=False) / f"spills-{marks}.json"


@functools.cache
def read(path: Path) -> Table:
    """Return the facts of a file; none where it is missing, torn, or of other versions."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["found"] if content["versions"] == versions() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def keep(path: Path, core: Core, types: Types, found: Found) -> None:
    """Add facts to a file; what it holds of other versions goes.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
    forget()
    table: Table = read(path)
    product, kind, processor = key_of(core, types)
    table.setdefault(product, {}).setdefault(kind, {})[processor] = found
    content = {"versions": versions(), "found": table}
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    forget()


def forget() -> None:
    """Have the files read again when something is asked next."""
    read.cache_clear()
    _found.cache_clear()
