"""`torch.compile(model, backend="tvm_blislike")`.

Each graph is compiled when it is first called, for the sizes it is called with: parameters are
constants then, whose weights are packed once. A graph that cannot be compiled runs eagerly, and a
warning says why.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

import numpy as np
import torch

from tvm_blislike.api import compile
from tvm_blislike.errors import (
    BlislikeError,
    EagerWarning,
    UnsupportedOperatorError,
    UsageError,
    suggest,
    warn_once,
)
from tvm_blislike.runtime.arrays import array_of
from tvm_blislike.runtime.compiled import CompiledModel
from tvm_blislike.torch.graphs import (
    Bound,
    Computed,
    Constants,
    Known,
    Result,
    View,
    are_parameters,
    empty_strided,
    numbers_of,
    results_of,
    with_arguments_only,
    with_numbers,
)

_OPTIONS = {
    *("threads", "override", "constraints", "records", "learned", "weights", "precision", "cache")
}
# As many as torch compiles one function anew by default.
_MOST_SIZES = 8


def backend(
    graph: torch.fx.GraphModule,
    arguments: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return what runs a graph; called by `torch.compile`.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph.
    arguments : sequence
        Examples of its arguments.
    options : mapping, optional
        Arguments of `tvm_blislike.compile`: threads (by default `torch.get_num_threads()`),
        override, constraints, records, learned, weights, precision, cache.
    mode : str, optional
        None or "default".

    Raises
    ------
    UsageError
        When there is no such option or mode.
    """
    unknown = sorted(set(options or {}) - _OPTIONS)
    if unknown:
        raise UsageError(f"the backend has no option {unknown[0]!r}", suggest(unknown[0], _OPTIONS))
    if mode not in (None, "default"):
        raise UsageError(f"the backend has no mode {mode!r}", "leave mode out, and see options")
    return CompiledGraph(graph, dict(options or {}))


class CompiledGraph:
    """A graph that is compiled for each combination of sizes when it is called with them first."""

    def __init__(self, graph: torch.fx.GraphModule, options: Mapping[str, Any]) -> None:
        self._graph, self._attributes = with_arguments_only(graph)
        self._options = options
        self._is_parameter = are_parameters(self._graph)
        # Networks have hundreds of parameters, and each run looks at what it is given.
        self._numbers = numbers_of(self._graph)
        self._free = [
            i for i, known in enumerate(self._is_parameter) if not known and i not in self._numbers
        ]
        self._compiled: dict[Any, _ForSizes | None] = {}

    def __call__(self, *given: Any) -> Sequence[Any]:
        """Run the graph."""
        arguments = given + self._attributes
        sizes = [_sizes(arguments[i]) for i in self._free]
        key = (*sizes, *[arguments[i].item() for i in self._numbers])
        found = self._compiled.get(key)
        if found is None or torch.is_grad_enabled() or not found.holds(arguments):
            found = self._found(key, arguments)
        return self._graph(*arguments) if found is None else found(arguments)

    def _found(self, key: Any, arguments: Sequence[Any]) -> _ForSizes | None:
        """Return what is compiled for arguments, compiling it at need; None to run eagerly."""
        reason = _why_eager(arguments)
        if reason is not None:
            self._warn(reason)
            return None
        known = self._compiled.get(key)
        if key not in self._compiled or (known is not None and not known.holds(arguments)):
            self._compiled[key] = self._compile(arguments)
        return self._compiled[key]

    def _compile(self, arguments: Sequence[Any]) -> _ForSizes | None:
        """Compile for arguments like these; where that fails, warn and return None."""
        if len(self._compiled) >= _MOST_SIZES:
            self._warn(f"it was called with more than {_MOST_SIZES} combinations of sizes")
            return None
        try:
            graph = with_numbers(self._graph, arguments, self._numbers)
            parameters = [i for i, known in enumerate(self._is_parameter) if known]
            return _ForSizes(graph, arguments, (self._free, parameters), self._options)
        except UsageError:
            raise
        except BlislikeError as error:
            self._warn(error.message)
        except Exception as error:  # of torch.export, which has no kind of its own
            lines = str(error).strip().splitlines() or [""]
            self._warn(f"torch cannot export it: {type(error).__name__}: {lines[0]}")
        return None

    def _warn(self, reason: str) -> None:
        count = sum(node.op.startswith("call_") for node in self._graph.graph.nodes)
        warn_once(EagerWarning, f"a graph of {count} operators runs eagerly: {reason}")


class _ForSizes:
    """A graph compiled for arguments of some sizes, of which some are free, some parameters.

    Raises
    ------
    BlislikeError
        When it cannot be.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        places: tuple[Sequence[int], Sequence[int]],
        options: Mapping[str, Any],
    ) -> None:
        self._inputs, parameters = (
            [i for i in each if isinstance(arguments[i], torch.Tensor)] for each in places
        )
        self._parameters_of = _taken(parameters)
        self._constants = Constants(self._parameters_of(arguments))
        self._results = results_of(graph, arguments)
        self._computed = [r for r in self._results if isinstance(r, Computed)]
        written = [r.contiguous() for r in self._computed]
        self._written = [(r.size, r.stride, r.dtype) for r in written]
        self._are_as_written = list(self._results) == written
        computed = [i for i, r in enumerate(self._results) if isinstance(r, Computed)]
        bound = Bound(graph, arguments, self._inputs, computed)
        examples = tuple(arguments[i] for i in self._inputs)
        # Strides are those of all calls; a tensor of another kind is another graph.
        self._is_plain = all(t.is_contiguous() and not t.is_neg() for t in examples)
        with torch.no_grad():
            program = torch.export.export(bound, examples)
        options = {"threads": torch.get_num_threads(), **options}
        model = compile(program, **options)
        self._require_same(model)
        self._runner, self._lock = model.runner(), threading.Lock()

    def _require_same(self, model: CompiledModel) -> None:
        """Raise when the model differs from torch: in types, as under autocast, or in inputs."""
        if any(None in spec.shape for spec in (*model.inputs, *model.outputs)):
            raise UnsupportedOperatorError("it has sizes that are known at run time only")
        if len(model.inputs) != len(self._inputs):
            raise UnsupportedOperatorError("its export has other inputs")
        given = [str(spec.dtype) for spec in model.outputs]
        wanted = [str(r.dtype).removeprefix("torch.") for r in self._computed]
        if given != wanted:
            raise UnsupportedOperatorError(
                f"it returns {', '.join(wanted)}, compiled {', '.join(given)}"
            )

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether the parameters are those that it was compiled with."""
        return self._constants.hold(self._parameters_of(arguments))

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        inputs = [arguments[i] for i in self._inputs]
        found = list(starmap(empty_strided, self._written))
        with self._lock:
            if not (self._is_plain and self._runner.run_at(_places(inputs), _places(found))):
                self._runner.run_on(_arrays(inputs), _arrays(found))
        # Kernels have just driven Python from the caches, where each line of it takes long.
        if self._are_as_written:
            return found
        values = map(_strided, found, self._computed)
        return [_value(result, arguments, values) for result in self._results]


def _taken(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what takes the arguments at some places, hundreds where they are parameters."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda arguments: [arguments[i] for i in places]


def _places(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _arrays(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    return [array_of(tensor.detach()) for tensor in tensors]


def _strided(value: torch.Tensor, result: Computed) -> torch.Tensor:
    """Return a value with the strides that torch would give it."""
    if value.stride() == result.stride:
        return value
    return torch.empty_strided(result.size, result.stride, dtype=result.dtype).copy_(value)


def _value(result: Result, arguments: Sequence[Any], values: Iterator[torch.Tensor]) -> Any:
    if isinstance(result, Known):
        return result.value
    if isinstance(result, View):
        base = arguments[result.argument]
        offset = base.storage_offset() + result.offset
        return base.as_strided(result.size, result.stride, offset)
    return next(values)


def _sizes(argument: Any) -> Any:
    """Return what a compiled graph depends on of an argument that is no parameter."""
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.size(), argument.stride()


def _why_eager(arguments: Sequence[Any]) -> str | None:
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if any(t.device.type != "cpu" for t in tensors):
        return "its tensors are not on the CPU"
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return (
            "gradients are wanted; call it under torch.no_grad(), or after "
            "model.requires_grad_(False)"
        )
    return None
