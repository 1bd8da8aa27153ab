"""What a graph of torch's compiler takes and returns: parameters, views, sizes.

Private sides of torch are used here and nowhere else.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._C._dynamo import guards
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from tvm_blislike.errors import UnsupportedOperatorError

# How Dynamo marks parameters and buffers.
_STATIC = "_dynamo_static_input_type"


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


# `torch.empty_strided` without the way through torch's dispatcher, which takes 25 microseconds
# where kernels have just driven it from the caches; made for what Inductor compiles.
empty_strided: Callable[..., torch.Tensor] = getattr(guards, "_empty_strided_cpu", _empty)


@dataclass(frozen=True)
class Known:
    """A result that does not depend on the values of tensors, such as a size."""

    value: Any


@dataclass(frozen=True)
class View:
    """A result that is a view of an argument.

    Parameters
    ----------
    argument : int
        Which.
    size, stride : tuple of int
        Of the view, in elements.
    offset : int
        Elements from where the argument begins.
    """

    argument: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Computed:
    """A result with memory of its own; parameters as of `torch.empty_strided`."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def contiguous(self) -> Computed:
        """Return it as a compiled model writes it."""
        return replace(self, stride=torch.empty(self.size, device="meta").stride())


Result = Known | View | Computed


def are_parameters(graph: torch.fx.GraphModule) -> tuple[bool, ...]:
    """Return, for each argument of a graph, whether it is a parameter or a buffer of a module."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    notes = [node.meta.get("tensor_dict") or {} for node in places]
    return tuple(_STATIC in note for note in notes)


def with_arguments_only(
    graph: torch.fx.GraphModule,
) -> tuple[torch.fx.GraphModule, tuple[torch.Tensor, ...]]:
    """Return a graph that takes the tensors among its attributes as its last arguments, and them.

    Dynamo makes parameters attributes where `torch._inductor.config.freezing` is set, for whatever
    backend; they may change all the same.
    """
    copied = copy.deepcopy(graph.graph)
    first = next(node for node in copied.nodes if node.op != "placeholder")
    tensors = []
    for node in [node for node in copied.nodes if node.op == "get_attr"]:
        value = operator.attrgetter(node.target)(graph)
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            with copied.inserting_before(first):
                argument = copied.placeholder(node.name)
            argument.meta["tensor_dict"] = {_STATIC: "unguarded"}
            node.replace_all_uses_with(argument)
    copied.eliminate_dead_code(lambda node: node.op != "get_attr")
    return torch.fx.GraphModule(graph, copied), tuple(tensors)


def numbers_of(graph: torch.fx.GraphModule) -> tuple[int, ...]:
    """Return which arguments are tensors of which a graph takes the number only.

    That is how torch passes numbers that it leaves open, such as the epsilon of a normalization
    with `dynamic=True`.
    """
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return tuple(
        i for i, node in enumerate(places) if node.users and all(map(_is_item, node.users))
    )


def _is_item(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def with_numbers(
    graph: torch.fx.GraphModule, arguments: Sequence[Any], numbers: Sequence[int]
) -> torch.fx.GraphModule:
    """Return a graph of the same arguments that has the numbers of some as constants."""
    copied = copy.deepcopy(graph.graph)
    places = [node for node in copied.nodes if node.op == "placeholder"]
    for i in numbers:
        for node in list(places[i].users):
            node.replace_all_uses_with(arguments[i].item())
            copied.erase_node(node)
    return torch.fx.GraphModule(graph, copied)


def results_of(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> tuple[Result, ...]:
    """Return what each result of a graph is for arguments like these; computes no values.

    Raises
    ------
    UnsupportedOperatorError
        When running it changes an argument, or two results share memory.
    """
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        before = [_version(a) for a in fakes]
        results = graph(*fakes)
    for node, fake, version in zip(graph.graph.nodes, fakes, before, strict=False):
        if _version(fake) != version:
            raise UnsupportedOperatorError(f"it writes into its argument {node.name}")
    found = tuple(_result(result, fakes) for result in results)
    _require_apart([r for r in results if isinstance(r, torch.Tensor)])
    return found


def _result(result: Any, arguments: Sequence[Any]) -> Result:
    if not isinstance(result, torch.Tensor):
        return Known(result)
    size, stride = tuple(map(int, result.size())), tuple(map(int, result.stride()))
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and _storage(argument) == _storage(result):
            offset = int(result.storage_offset()) - int(argument.storage_offset())
            return View(i, size, stride, offset)
    return Computed(size, stride, result.dtype)


def _require_apart(results: Sequence[torch.Tensor]) -> None:
    """Changing one result would change the other in torch, and not in a compiled model."""
    if len({_storage(result) for result in results}) < len(results):
        raise UnsupportedOperatorError("two of its results share memory")


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _version(value: Any) -> int:
    """Return how often a tensor was changed in place; 0 for one that does not count it."""
    is_counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if is_counted else 0


class Constants:
    """Tensors whose values a compiled model holds, and whether they still have them.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Parameters and buffers.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._places = list(map(torch.Tensor.data_ptr, tensors))
        # Those of inference mode do not count how often they were changed.
        self._counted = [t for t in tensors if not t.is_inference()]
        self._versions = [t._version for t in self._counted]

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same tensors with the same values.

        What is written by way of `.data` is not seen, as torch does not count it.
        """
        return (
            all(map(operator.is_, tensors, self._tensors))
            # Half the time of a loop that looks the method up for each of hundreds.
            and list(map(torch.Tensor.data_ptr, self._tensors)) == self._places
            and [t._version for t in self._counted] == self._versions
        )


class Bound(torch.nn.Module):
    """A graph whose parameters and sizes are bound: takes tensors, returns computed tensors.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph.
    arguments : sequence
        All of its arguments.
    free : sequence of int
        The arguments that stay.
    computed : sequence of int
        The results to return.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        free: Sequence[int],
        computed: Sequence[int],
    ) -> None:
        super().__init__()
        self.graph = graph
        self._arguments = [None if i in free else a for i, a in enumerate(arguments)]
        self._free, self._computed = tuple(free), tuple(computed)
        for i, argument in enumerate(self._arguments):
            if isinstance(argument, torch.Tensor):
                self.register_buffer(f"constant{i}", argument.detach())
                self._arguments[i] = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph."""
        given = dict(zip(self._free, tensors, strict=True))
        constants = dict(self.named_buffers(recurse=False))
        arguments = [
            given[i] if i in given else constants.get(f"constant{i}", argument)
            for i, argument in enumerate(self._arguments)
        ]
        results = self.graph(*arguments)
        return tuple(results[i] for i in self._computed)
