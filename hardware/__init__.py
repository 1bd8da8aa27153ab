"""Facts about processor cores: one TOML per core, and the present machine."""

from .core import Cache, Core, CoreFileError, HardwareError, UnknownCoreError, dtype_bits, names

__all__ = [
    "Cache",
    "Core",
    "CoreFileError",
    "HardwareError",
    "UnknownCoreError",
    "dtype_bits",
    "names",
]
