"""How a schedule says something about a loop that TVM's primitives cannot say.

A template, or a micro-kernel, writes a directive onto a loop; `schedules.lowering` reads it when
the blocks have become loops, and does what it says. `directives` has them all, each a class: its
fields are what it says, its docstring what is done, its `rules` where it may stand.

In TIR a directive is an annotation. A schedule's trace survives MetaSchedule's JSON database with
numbers and texts in its annotations, not with maps: several values become a text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import tvm_ffi
from tvm import s_tir, tirx


class MisplacedDirective(ValueError):
    """A directive stands on a loop where it cannot do what it says."""


@dataclass(frozen=True)
class Directive:
    """Base of all directives.

    Attributes
    ----------
    key : str
        Of the annotation; made of the name of the class.
    rules : tuple of callable
        Where it may stand: each takes the directive and its loop and returns what to change, ""
        where nothing has to.
    """

    key: ClassVar[str]
    rules: ClassVar[tuple[Callable[[Any, tirx.For], str], ...]]

    def __init_subclass__(cls) -> None:
        cls.key = "blislike." + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        _BY_KEY[cls.key] = cls

    def on(self, sch: s_tir.Schedule, loop: Any) -> None:
        """Write the directive onto a loop of a schedule."""
        sch.annotate(loop, self.key, self._written())

    def note(self) -> dict[str, int | str]:
        """Return the annotation, for loops that are built directly."""
        return {self.key: self._written()}

    @classmethod
    def of(cls, loop: tirx.For) -> Self | None:
        """Return the directive of this class that a loop carries, if any."""
        written = loop.annotations.get(cls.key) if loop.annotations else None
        if written is None:
            return None
        if not isinstance(written, str):
            return cls(int(written))
        value = ast.literal_eval(str(written)) if written.startswith("{") else str(written)
        return cls(value) if len(fields(cls)) == 1 else cls(**value)

    def _written(self) -> int | str:
        """One number or text as it is, anything else as the text of a map."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        value = next(iter(values.values())) if len(values) == 1 else values
        return value if isinstance(value, int | str) else repr(value)


_BY_KEY: dict[str, type[Directive]] = {}


def all_directives() -> tuple[type[Directive], ...]:
    """Return the classes of all directives."""
    return tuple(_BY_KEY.values())


def check(body: tirx.Stmt) -> set[type[Directive]]:
    """Return the classes of the directives on the loops of a function.

    Raises
    ------
    MisplacedDirective
        When one of them cannot stand where it does.
    """
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(body, (tirx.For, loops.append), order="pre")
    found: set[type[Directive]] = set()
    for loop in loops:
        for kind in (_BY_KEY.get(str(key)) for key in loop.annotations or ()):
            if kind is None:
                continue
            found.add(kind)
            directive = kind.of(loop)
            reason = next(filter(None, (rule(directive, loop) for rule in kind.rules)), None)
            if reason:
                raise MisplacedDirective(f"{directive} on the loop {loop.loop_var.name}: {reason}")
    return found


def _plain(value: Any) -> Any:
    """Return a value without the types of NumPy and TIR."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, Sequence) else int(value)
