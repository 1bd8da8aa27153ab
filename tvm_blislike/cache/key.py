"""The key of a compiled model: a digest of all that the compiler's result follows from.

The model's bytes, or what a program of torch says, its inputs' shapes, the core with every fact,
the threads, the limits of the choice, the records, and the versions of TVM and of this package,
down to its sources. Files that a model refers to are not part of its key, but noted in the entry:
see `entry.py`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_blislike.export.checksum import sha256
from tvm_blislike.onnx.open_sizes import frozen
from tvm_blislike.records.place import default_path

if TYPE_CHECKING:
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.hardware import Core
    from tvm_blislike.onnx.open_sizes import Shapes
    from tvm_blislike.records.book import RecordBook

# Counts up when entries are written in another way.
_FORMAT = 3
_ROOT = Path(__file__).parents[1]
# Rooms that stand beside the package in a checkout, and in it when it is installed.
_BESIDE = ("hardware", "microkernels", "cost_models", "schedules")
_SOURCES = (".py", ".toml", ".json")
_DISTRIBUTIONS = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "highspy")


@dataclass(frozen=True)
class Content:
    """What a model says.

    Parameters
    ----------
    digest : str
        Of all that its computation follows from.
    name : str
        Stands in the report and in messages; "" for a model without a file.
    """

    digest: str
    name: str = ""

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Content:
        """Return that of a file; raises OSError when it cannot be read."""
        return cls(sha256(Path(path)), Path(path).name)


def key_of(
    model: Content,
    core: Core,
    threads: int,
    shapes: Shapes | None = None,
    constraints: Constraints | None = None,
    records: str | os.PathLike[str] | RecordBook | None = None,
    learned: str | os.PathLike[str] | None = None,
) -> str:
    """Return the key of what `tvm_blislike.compile` makes of these arguments.

    Raises
    ------
    OSError
        When a file cannot be read.
    """
    sizes = frozen(shapes)
    parts = (
        _FORMAT,
        model.digest,
        model.name,
        sorted(sizes.items()),
        core.to_toml(),
        threads,
        # The limits that nobody set are those of None.
        repr(constraints) if constraints not in (None, _defaults(constraints)) else "",
        _records(records),
        "" if learned is None else sha256(Path(learned)),
        _versions(),
        _sources(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


def has_own_ways() -> bool:
    """Whether this process compiles in a way of its own: registered algorithms, TVM's contexts.

    What is not imported yet cannot have been changed.
    """
    schedules = sys.modules.get("tvm_blislike.schedules")
    if schedules is not None and schedules.user_implementations():
        return True
    if "tvm" not in sys.modules:
        return False
    import tvm
    from tvm.s_tir import meta_schedule

    context = tvm.transform.PassContext.current()
    is_plain = not context.config and not context.instruments and context.opt_level == 2
    return not is_plain or meta_schedule.database.Database.current() is not None


def _defaults(constraints: Constraints) -> Constraints:
    return type(constraints)()


def _records(records: str | os.PathLike[str] | RecordBook | None) -> str:
    """Return a digest of what was measured; "" for nothing."""
    if records is None or isinstance(records, str | os.PathLike):
        path = default_path() if records is None else Path(records)
        if str(records) == "none" or (records is None and not path.exists()):
            return ""
        return sha256(path)
    lines = records.lines()
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


@functools.cache
def _versions() -> tuple[str, ...]:
    found = (f"{name} {importlib.metadata.version(name)}" for name in _DISTRIBUTIONS)
    return (*found, platform.python_version())


@functools.cache
def _sources() -> str:
    """Return a digest of the size and date of every source file of this package."""
    digest = hashlib.sha256()
    for room in (_ROOT, *_rooms_beside()):
        for place, folders, names in os.walk(room):
            folders.sort()
            for name in sorted(names):
                if name.endswith(_SOURCES):
                    found = os.stat(os.path.join(place, name))
                    digest.update(f"{place}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _rooms_beside() -> list[Path]:
    """Return the folders of rooms that do not lie in the package's own."""
    return [_ROOT.parent / room for room in _BESIDE if not (_ROOT / room).is_dir()]
