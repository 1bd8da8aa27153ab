"""Machines that are not here: synthetic flags and sysfs trees."""

from pathlib import Path

from tvm_blislike.hardware.cpus import Cpu, arm_key, x86_key
from tvm_blislike.hardware.machine import Machine

AVX2 = {"avx", "avx2", "fma", "f16c", "movbe", "bmi1", "bmi2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ICELAKE = AVX512 | {"avx512vbmi2", "avx512vnni", "avx512ifma", "vaes"}
SAPPHIRE = ICELAKE | {"amxtile", "avx512fp16", "avx512bf16", "avxvnni"}


def x86(flags: set[str], vendor: str = "GenuineIntel", model: tuple | None = None) -> Machine:
    """Return a machine of one CPU; `model` is family, model and, of a hybrid one, the kind."""
    cpu = Cpu(0, x86_key(vendor, *model) if model else "")
    return Machine("Linux", "x86_64", frozenset(flags), vendor, cpus=(cpu,))


def arm(part: int | None, flags: set[str], implementer: int = 0x41, brand: str = "") -> Machine:
    key = "" if part is None else arm_key(implementer, part)
    return Machine("Linux", "aarch64", frozenset(flags), brand=brand, cpus=(Cpu(0, key),))


def write_cpu(devices: Path, cpu: int, caches: list[dict], **files: str) -> None:
    """Write one cpuN folder below `devices`: a list of cache indices, further files by path."""
    folder = devices / f"system/cpu/cpu{cpu}"
    for i, cache in enumerate(caches):
        for field, value in cache.items():
            write(folder / f"cache/index{i}/{field}", value)
    for name, value in files.items():
        write(folder / name.replace("__", "/"), value)


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def index(level, kind, size, ways=None, shared="0", line=64) -> dict:
    entry = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
    numbers = {"ways_of_associativity": ways, "coherency_line_size": line}
    return entry | {k: v for k, v in numbers.items() if v is not None}


def cpuinfo(flags=(), vendor="", arch="x86_64", ghz=None, brand=""):
    info = {
        "arch_string_raw": arch,
        "vendor_id_raw": vendor,
        "brand_raw": brand,
        "flags": list(flags),
    }
    if ghz:
        info["hz_advertised"] = [int(ghz * 1e9), 0]
    return lambda: info


def failing():
    raise Exception("unknown processor")
