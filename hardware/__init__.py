"""Facts about processor cores: one TOML per core, and the present machine."""

from .core import LINE_BYTES, Cache, Core, UnknownCoreError, dtype_bits, names
from .corefile import CoreFileError, HardwareError
from .native import native_core

__all__ = [
    "LINE_BYTES",
    "Cache",
    "Core",
    "CoreFileError",
    "HardwareError",
    "UnknownCoreError",
    "dtype_bits",
    "names",
    "native_core",
]
