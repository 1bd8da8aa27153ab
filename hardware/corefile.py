"""Cores as TOML text: reading with checks that name file, field and remedy, and writing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import avx2, avx512, neon
from .isa import Isa
from .keys import is_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CACHE_POLICIES = ("inclusive", "non-inclusive", "exclusive", "victim")
# The instruction sets there are kernels for. This list is the only place that names them all.
ISAS = {isa.name: isa for isa in (avx512.ISA, avx2.ISA, neon.ISA)}


class HardwareError(ValueError):
    """A core could not be described."""


class CoreFileError(HardwareError):
    """A TOML does not describe a core; the message names file, field and remedy."""


_Check = tuple[Callable[[Any], bool], str]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(_is_name(v) for v in value)


def _one_of(choices: tuple[str, ...]) -> _Check:
    return lambda v: v in choices, f"one of {', '.join(choices)}"


_COUNT: _Check = (_is_count, "a whole number above 0")
_POSITIVE: _Check = (_is_positive, "a number above 0")
_NOT_NEGATIVE: _Check = (lambda v: v == 0 or _is_positive(v), "0 or a number above 0")
_SHARE: _Check = (lambda v: v in (0, 1) or (_is_positive(v) and v < 1), "from 0 to 1")
_NAME: _Check = (_is_name, "a non-empty string")
_NAMES: _Check = (_is_names, "a list of non-empty strings")
_KEYS: _Check = (
    lambda v: isinstance(v, list) and all(map(is_key, v)),
    'a list of "0x41:0xd0b" (Arm), "AuthenticAMD:25:0x10-0x1f" (x86), or names',
)
_FLAG: _Check = (lambda v: isinstance(v, bool), "true or false")

# One line per field: what a valid value is, in the words of the error message.
_CORE_FIELDS: dict[str, _Check] = {
    "name": _NAME,
    "source": (lambda v: _is_names(v) and bool(v), "a list of at least one document"),
    "isa": _one_of(tuple(ISAS)),
    "vector_bits": (lambda v: v in (128, 256, 512), "128, 256 or 512"),
    "vector_registers": _COUNT,
    "fma_per_cycle": _POSITIVE,
    "fma_latency": _COUNT,
    "loads_per_cycle": _POSITIVE,
    "stores_per_cycle": _POSITIVE,
    "element_loads_per_cycle": _POSITIVE,
    "vectors_per_cycle": _POSITIVE,
    "bf16_per_cycle": _POSITIVE,
    "broadcasts_per_cycle": _POSITIVE,
    "memory_gb_per_s": _POSITIVE,
    "memory_core_gb_per_s": _POSITIVE,
    "element_load_cycles": _NOT_NEGATIVE,
    "vector_load_cycles": _NOT_NEGATIVE,
    "reorder_window": _COUNT,
    "loads_in_flight": _COUNT,
    "memory_ns": _POSITIVE,
    "lines_in_flight": _COUNT,
    "fork_join_us": _POSITIVE,
    "ghz": _POSITIVE,
    "mtriple": _NAME,
    "mcpu": _NAME,
    "mattr": (
        lambda v: _is_names(v) and all(a[0] in "+-" for a in v),
        'a list of LLVM features, each "+name" or "-name"',
    ),
    "cores": _COUNT,
    "notes": _NAMES,
    "issue_per_cycle": _COUNT,
    "in_order": _FLAG,
    "follows_rows": _FLAG,
    "ahead_bytes": _COUNT,
    "prefetch_streams": _COUNT,
    "l2_crowding": _NOT_NEGATIVE,
    "spilled_passes": _POSITIVE,
    "passed_bytes_per_cycle": _POSITIVE,
    "is_virtual": _FLAG,
    "features": _NAMES,
    "recognized_by": _KEYS,
    "stands_for": _KEYS,
    "caches": (
        lambda v: isinstance(v, list) and all(isinstance(c, dict) for c in v),
        "tables, one [[caches]] per level",
    ),
}
_CACHE_FIELDS: dict[str, _Check] = {
    "level": _COUNT,
    "bytes": _COUNT,
    "ways": _COUNT,
    "line_bytes": _COUNT,
    "bytes_per_cycle": _POSITIVE,
    "all_bytes_per_cycle": _POSITIVE,
    "kept_of_half": _SHARE,
    "shared_by": _COUNT,
    "policy": _one_of(CACHE_POLICIES),
}
# Bytes per cycle at which a core reads what one that shares no cache with it has written over what
# it had read there before: two virtual cores of Golden Cove 0.5 to 1.1, of Zen 4 1, of Zen 5 1.6.
PASSED_AFAR = 1.0
_LISTS = ("source", "mattr", "notes", "features", "recognized_by", "stands_for")
_OPTIONAL = {
    "mattr": (),
    "notes": (),
    "issue_per_cycle": None,
    "element_loads_per_cycle": None,
    "vectors_per_cycle": None,
    "bf16_per_cycle": None,
    "broadcasts_per_cycle": None,
    "reorder_window": None,
    "loads_in_flight": None,
    "memory_ns": None,
    "all_bytes_per_cycle": None,
    "kept_of_half": 1.0,
    "in_order": False,
    "follows_rows": True,
    "ahead_bytes": 2048,
    "prefetch_streams": 4,
    "l2_crowding": 0.6,
    "spilled_passes": 1.7,
    "passed_bytes_per_cycle": PASSED_AFAR,
    "is_virtual": False,
    "features": (),
    "recognized_by": (),
    "stands_for": (),
    "caches": (),
    "shared_by": 1,
    "policy": "inclusive",
}


def read(path: Path) -> dict[str, Any]:
    """Return the fields of the core that the TOML file at `path` describes, each cache's a dict.

    Raises
    ------
    CoreFileError
        When the file cannot be read, is not TOML, or a field is missing, unknown or senseless.
    """
    table = _checked(_load(path), _CORE_FIELDS, path, "")
    caches = [_read_cache(c, path, f"caches[{i}].") for i, c in enumerate(table["caches"])]
    levels = [cache["level"] for cache in caches]
    if levels != sorted(set(levels)):
        raise _error(path, "caches", f"levels {levels} are not rising; order [[caches]] by level")
    isa = ISAS[table["isa"]]
    known = [feature.name for feature in isa.features]
    if not {*table["features"]} <= {*known}:
        raise _error(path, "features", f"is {table['features']}; {isa.name} has {', '.join(known)}")
    lists = {k: tuple(table[k]) for k in _LISTS}
    return {**table, **lists, "isa": isa, "caches": caches}


def text_of(core: Any) -> str:
    """Return a `Core` as TOML text, fields in the order of the dataclass, None left out."""
    fields = [f.name for f in dataclasses.fields(core) if f.name != "caches"]
    lines = [_line(name, getattr(core, name)) for name in fields]
    for cache in core.caches:
        lines += ["", "[[caches]]"]
        lines += [_line(k, v) for k, v in dataclasses.asdict(cache).items()]
    return "\n".join(line for line in lines if line is not None) + "\n"


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CoreFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CoreFileError(f"{path}: not a TOML file: {error}") from error


def _read_cache(table: dict[str, Any], path: Path, where: str) -> dict[str, Any]:
    cache = _checked(table, _CACHE_FIELDS, path, where)
    if cache["bytes"] < cache["ways"] * cache["line_bytes"]:
        raise _error(
            path, where + "bytes", "fewer than ways * line_bytes; correct one of the three"
        )
    return cache


def _checked(
    table: dict[str, Any], fields: dict[str, _Check], path: Path, where: str
) -> dict[str, Any]:
    """Return `table` with defaults filled in, every value checked."""
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise _error(path, where + unknown[0], f"unknown; known fields: {', '.join(fields)}")
    values = {}
    for field, (valid, wanted) in fields.items():
        if field in table and not valid(table[field]):
            raise _error(path, where + field, f"is {table[field]!r}; write {wanted}")
        if field not in table and field not in _OPTIONAL:
            raise _error(path, where + field, f"missing; add {wanted}")
        values[field] = table.get(field, _OPTIONAL.get(field))
    return values


def _error(path: Path, field: str, message: str) -> CoreFileError:
    return CoreFileError(f"{path}: field {field!r} {message}")


def _line(name: str, value: Any) -> str | None:
    return None if value is None else f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Isa):
        return _toml(value.name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + "".join(f"\n    {_toml(v)}," for v in value) + ("\n]" if value else "]")
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which only TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
