"""Facts about processor cores: one TOML per core, and the present machine."""

from .core import (
    LINE_BYTES,
    Cache,
    Core,
    CoreFileError,
    HardwareError,
    UnknownCoreError,
    dtype_bits,
    names,
)

__all__ = [
    "LINE_BYTES",
    "Cache",
    "Core",
    "CoreFileError",
    "HardwareError",
    "UnknownCoreError",
    "dtype_bits",
    "names",
]
