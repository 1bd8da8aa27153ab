"""Machines that are not here: synthetic flags and sysfs trees."""

from pathlib import Path

from tvm_blislike.hardware.machine import Machine

AVX2 = {"avx", "avx2", "fma", "f16c", "movbe", "bmi1", "bmi2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ICELAKE = AVX512 | {"avx512vbmi2", "avx512vnni", "avx512ifma", "vaes"}
SAPPHIRE = ICELAKE | {"amxtile", "avx512fp16", "avx512bf16", "avxvnni"}


def x86(flags: set[str], vendor: str = "GenuineIntel", **more) -> Machine:
    return Machine("Linux", "x86_64", frozenset(flags), vendor, **more)


def arm(part: int | None, flags: set[str], implementer: int = 0x41, **more) -> Machine:
    midr = None if part is None else implementer << 24 | part << 4
    cpus = more.get("cpus", (0,))
    fields = {"midrs": (midr,) * len(cpus), **more}
    return Machine("Linux", "aarch64", frozenset(flags), **fields)


def write_cpu(sysfs: Path, cpu: int, caches: list[dict], **files: str) -> None:
    """Write one cpuN folder: a list of cache indices, and further files by path."""
    for i, cache in enumerate(caches):
        for field, value in cache.items():
            path = sysfs / f"cpu{cpu}/cache/index{i}/{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    for name, value in files.items():
        path = sysfs / f"cpu{cpu}" / name.replace("__", "/")
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
