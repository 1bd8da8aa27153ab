"""Facts about processor cores: one TOML per core, and the present machine."""

from .core import LINE_BYTES, Cache, Core, UnknownCoreError, described_cores, dtype_bits, names
from .corefile import ISAS, CoreFileError, HardwareError
from .isa import Isa
from .native import native_core, native_description

__all__ = [
    "ISAS",
    "LINE_BYTES",
    "Cache",
    "Core",
    "CoreFileError",
    "HardwareError",
    "Isa",
    "UnknownCoreError",
    "described_cores",
    "dtype_bits",
    "names",
    "native_core",
    "native_description",
]
