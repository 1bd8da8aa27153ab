"""A folder per algorithm, what they share, and the lookup of implementations by name.

A folder whose `definition.py` has an `IMPLEMENTATION` is an algorithm; nothing lists them. They are
imported when an implementation is first asked for: they need TVM's scheduling API.
`register_implementation` adds yours, and it is then a candidate wherever it applies.
`default` schedules what no algorithm does, `lowering` finishes what was scheduled.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import import_module
from pathlib import Path

from tvm_blislike.model.before import own_fields
from tvm_blislike.model.config import Config
from tvm_blislike.model.registry import Implementation

_REGISTERED: dict[str, Implementation] = {}


def register_implementation(implementation: Implementation, *, override: bool = False) -> None:
    """Make an implementation a candidate for its kind of workload.

    Raises
    ------
    ValueError
        When its name is taken and `override` is not set.
    TypeError
        When it lacks a method of `Implementation`.
    """
    if not isinstance(implementation, Implementation):
        raise TypeError(f"{implementation!r} lacks a method or attribute of Implementation")
    if implementation.name in _known() and not override:
        raise ValueError(f"implementation {implementation.name!r} exists; pass override=True")
    _REGISTERED[implementation.name] = implementation


def unregister_implementation(name: str) -> None:
    """Take a registered implementation out again; unknown names are ignored."""
    _REGISTERED.pop(name, None)


def implementations(kind: str) -> tuple[Implementation, ...]:
    """Return the implementations for a kind of workload: the library's own by name, then yours."""
    return tuple(i for i in all_implementations() if i.kind == kind)


def all_implementations() -> tuple[Implementation, ...]:
    """Return the implementations for every kind of workload, in the order of `implementations`."""
    return tuple(_known().values())


def user_implementations() -> tuple[Implementation, ...]:
    """Return the implementations that were registered beside the library's own."""
    return tuple(_REGISTERED.values())


def get_implementation(name: str) -> Implementation:
    """Return the implementation of that name.

    Raises
    ------
    KeyError
        When there is none.
    """
    known = _known()
    if name not in known:
        raise KeyError(f"no implementation {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def read_config(text: str) -> Config:
    """Return the configuration that `Config.to_json` wrote, of the class of its implementation.

    Of an implementation that is not registered here, it has the fields that were written.

    Raises
    ------
    TypeError
        When the class does not have such a field.
    """
    fields = json.loads(text)
    known = _known().get(fields["implementation"])
    if known is None:
        return _foreign(tuple((name, type(value)) for name, value in fields.items()))(**fields)
    return known.config_type(**own_fields(known.config_type, fields))


@functools.cache
def _foreign(fields: tuple[tuple[str, type], ...]) -> type[Config]:
    """Return the class of configurations whose own class is not known."""
    return dataclasses.make_dataclass("Config", fields, bases=(Config,), frozen=True, kw_only=True)


def _known() -> dict[str, Implementation]:
    return {**_own(), **_REGISTERED}


@functools.cache
def _own() -> dict[str, Implementation]:
    """Import the library's own implementations, which have the names of their folders."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/definition.py"))
    return {name: import_module(f"{__name__}.{name}.definition").IMPLEMENTATION for name in folders}
