"""What a user allows the strategy to choose: errors, memory, implementations, pinned layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tvm_blislike.cost_models.slabs.config import NAME as SLABS
from tvm_blislike.cost_models.slabs.config import SlabConfig
from tvm_blislike.errors import UsageError, suggest
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import PRECISIONS, STORED
from tvm_blislike.schedules import all_implementations, get_implementation

if TYPE_CHECKING:
    from tvm_blislike.model.workload import Workload

# Error of a layer relative to its largest output, as its implementation estimates it. Errors of
# layers do not add up in networks that normalize: 13 layers of VGG-16 within this bound, most of
# them F(4, 3) and F(6, 3), give 4e-6 for the whole model. fp16: F(2, 3), whose errors are about
# those of direct convolution, for which nothing is estimated.
MAX_ERROR = {"float32": 1e-4, "float16": 2e-2}


@dataclass(frozen=True)
class Pin:
    """A user's choice for the workloads that match a pattern.

    Parameters
    ----------
    pattern : str
        Shell pattern for the workload as `explain` prints it, "conv 1x64x56x56 3x3*".
    implementation : str
        Name in the registry.
    fields : tuple of (str, str or int)
        Fields that the configuration must have.
    """

    pattern: str
    implementation: str
    fields: tuple[tuple[str, str | int], ...] = ()

    def matches(self, workload: Workload) -> bool:
        """Whether the pattern fits a workload."""
        return fnmatchcase(str(workload), self.pattern)


@dataclass(frozen=True)
class Constraints:
    """Limits of the strategy's choice.

    Parameters
    ----------
    max_error : float, optional
        Candidates whose estimated error, relative to the largest output, is greater are left out;
        by default `MAX_ERROR` of the data type. Below 1e-6 that is every Winograd variant.
    max_workspace : int, optional
        Candidates that need more bytes of temporary memory are left out; if none is left, the one
        that needs least is taken.
    only : tuple of str
        Where one of these implementations applies, no other is considered.
    without : tuple of str
        Implementations never to use.
    pins : tuple of Pin
        Choices for single workloads; the first that matches counts.
    weights : str
        Type in which constant weights may be stored where memory bounds a layer, a key of
        `model.types.STORED`; "": fp32, and fewer bits only where no weight is rounded.
    precision : str
        What layers of fp32 may be computed in, a key of `model.types.PRECISIONS`: "fast" takes for
        each what is predicted to be fastest; types whose errors exceed `max_error` are left out.
    images : int, optional
        How many images of a batch go through the first layers at a time, as far as they stay apart;
        0: all at once. By default what is predicted to be fastest.

    Raises
    ------
    UsageError
        When an implementation, a type of weights or a precision is not known.
    """

    max_error: float | None = None
    max_workspace: int | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    weights: str = ""
    precision: str = "fp32"
    images: int | None = None

    def __post_init__(self) -> None:
        for name in (*self.only, *self.without, *(pin.implementation for pin in self.pins)):
            _require_known(name)
        if self.weights and self.weights not in STORED:
            known = f"types are {', '.join(STORED)}"
            raise UsageError(f"weights cannot be stored as {self.weights!r}", known)
        if self.precision not in PRECISIONS:
            known = f"precisions are {', '.join(PRECISIONS)}"
            raise UsageError(f"nothing is computed in {self.precision!r}", known)

    def allowed_error(self, dtype: str) -> float:
        """Return the largest estimated error that a candidate of a data type may have."""
        default = MAX_ERROR.get(dtype, 0.0)
        return default if self.max_error is None else self.max_error

    def pin_for(self, workload: Workload) -> Pin | None:
        """Return the user's choice for a workload."""
        return next((pin for pin in self.pins if pin.matches(workload)), None)

    def refuses(self, implementation: Implementation, rivals: tuple[Implementation, ...]) -> str:
        """Return why an implementation is no candidate beside `rivals`, "" when it is one."""
        if implementation.name in self.without:
            return "excluded by the user"
        wanted = [rival.name for rival in rivals if rival.name in self.only]
        if wanted and implementation.name not in wanted:
            return f"only {', '.join(wanted)} asked for"
        return ""


def parse_pin(text: str) -> Pin:
    """Return the pin that "LAYER=IMPLEMENTATION[,field=value...]" means.

    Raises
    ------
    UsageError
        When the text has another form or names an unknown field or implementation.
    """
    pattern, equals, choice = _split_pin(text)
    implementation, *assignments = choice.split(",")
    if not (equals and pattern and implementation):
        raise UsageError(f"pin {text!r} is not of the form LAYER=IMPLEMENTATION[,field=value...]")
    _require_known(implementation)
    joins = implementation == SLABS
    own = dataclasses.fields(
        SlabConfig if joins else get_implementation(implementation).config_type
    )
    types = {f.name: type(f.default) for f in own if f.name != "implementation"}
    fields = tuple(_field(assignment, types) for assignment in assignments)
    return Pin(pattern, implementation, fields)


def _split_pin(text: str) -> tuple[str, str, str]:
    """Split at the "=" in front of the implementation: fields have one each, patterns none."""
    pattern, equals, choice = text.partition("=")
    return pattern.strip(), equals, choice.strip()


def _field(
    assignment: str, types: Mapping[str, Callable[[str], str | int]]
) -> tuple[str, str | int]:
    name, equals, value = (part.strip() for part in assignment.partition("="))
    if not equals or name not in types:
        raise UsageError(
            f"{assignment!r} sets no field of its configuration", suggest(name, list(types))
        )
    try:
        return name, types[name](value)
    except ValueError as error:
        raise UsageError(f"{name} of a pin must be a whole number, not {value!r}") from error


def _require_known(name: str) -> None:
    known = [SLABS, *(implementation.name for implementation in all_implementations())]
    if name not in known:
        raise UsageError(f"unknown implementation {name!r}", suggest(name, known))
