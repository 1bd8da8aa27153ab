"""What a measured time counts for: cores with the same facts, versions with the same kernels."""

from __future__ import annotations

import importlib.metadata
import zlib
from collections.abc import Mapping

from tvm_blislike.hardware import Core


def core_facts(core: Core) -> str:
    """Return a digest of what makes kernels fast or slow on a core, not of its name or sources."""
    caches = [(c.level, c.bytes, c.ways, c.line_bytes) for c in core.caches]
    facts = (core.isa.name, core.vector_bits, core.vector_registers, core.fma_per_cycle, caches)
    return f"{zlib.crc32(repr((*facts, core.mcpu, sorted(core.mattr))).encode()):08x}"


def versions() -> dict[str, str]:
    """Return the versions of this package and of TVM."""
    return {name: _version(name) for name in ("tvm-blislike", "apache-tvm")}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def are_compatible(found: Mapping[str, str], current: Mapping[str, str] | None = None) -> bool:
    """Whether versions of this package and of TVM have today's major and minor numbers."""
    current = current or versions()
    return all(minor_of(found, name) == minor_of(current, name) for name in current)


def minor_of(found: Mapping[str, str], name: str) -> str:
    """Return the major and minor number of one of some versions, as "0.27"."""
    return ".".join(found.get(name, "").split(".")[:2])
