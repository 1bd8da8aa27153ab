"""How a workload is computed: what the configurations of all algorithms have in common.

Each algorithm derives a class of its own choices (`cost_models/<algorithm>/config.py`). As JSON a
configuration is tagged with the name of its implementation, whose class `schedules.read_config`
makes of it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tvm_blislike.model.types import Types, kernel_name

_Own = TypeVar("_Own", bound="Config")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The choices of one algorithm for one layer.

    A class derived from it has a field for each choice, an `int` or a `str` with a default; users
    may pin any of them.

    Parameters
    ----------
    implementation : str
        Name of the algorithm, such as "conv2d_direct".
    mr, nr : int
        Rows and columns of the block of the result that is in registers; 0 without one.
    """

    # Where the choice is no field: no images, one order of loops.
    data_layout = out_layout = loop_order = ""
    # Names of fields in records of before 0.4, see `before`.
    BEFORE: ClassVar[Mapping[str, str]] = {}

    implementation: str = ""
    mr: int = 0
    nr: int = 0

    @property
    def kind(self) -> tuple[str | int, ...]:
        """What makes two configurations different kernels: algorithm, block, tile."""
        return (self.implementation, self.mr, self.nr)

    def microkernel(self, isa: str, types: Types) -> str:
        """Return the name of the micro-kernel that it calls, "" for none."""
        return ""

    def to_json(self) -> str:
        """Return this record as one line of JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def with_fields(self: _Own, **fields: int | str) -> _Own:
        """Return a copy with some fields replaced (how users pin a choice).

        Raises
        ------
        TypeError
            When the algorithm has no such field.
        """
        # `dataclasses.replace` takes six times as long, of a frozen class most of all to set fields
        # one by one; a model's layers have 40,000 candidates.
        kind, values = type(self), self.__dict__
        names = _names(kind)
        if not fields.keys() <= names.keys():
            return kind(**fields)  # which says what is wrong with them
        copy = object.__new__(kind)
        copy.__dict__.update({name: values[name] for name in names} | fields)
        return copy

    def changed_fields(self) -> dict[str, Any]:
        """Return its tag and what differs from the defaults: later versions may have more."""
        changed = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }
        return {"implementation": self.implementation, **changed}


@functools.cache
def _names(kind: type[Config]) -> dict[str, None]:
    """Return the names of fields, in order."""
    return {field.name: None for field in dataclasses.fields(kind)}


@dataclass(frozen=True, kw_only=True)
class KernelConfig(Config):
    """The choices of an algorithm that calls the micro-kernel of mr x nr.

    Parameters
    ----------
    ks : int
        Steps of k that a multiply-add takes, those of the micro-kernel.
    unroll : int
        k steps per iteration of the micro-kernel's loop, of ks elements each.
    """

    BEFORE: ClassVar[Mapping[str, str]] = {"kr": "unroll"}

    ks: int = 1
    unroll: int = 4

    @property
    def tile_rows(self) -> int:
        """Rows of a matrix product that are computed at once."""
        return self.mr

    def microkernel(self, isa: str, types: Types) -> str:
        """See `Config.microkernel`."""
        return kernel_name(isa, self.mr, self.nr, types, self.ks)
