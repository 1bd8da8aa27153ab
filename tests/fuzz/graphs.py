"""A random ONNX graph under construction, which knows the value of each of its tensors.

Every node is computed as soon as it is added, by ONNX Runtime or, where that cannot, by ONNX's
reference implementation. So shapes are known, what cannot be computed is never added, and each
tensor can be handed to a part of the graph later, to find the nodes that disagree.

Each tensor has a twin as well: the same computed with a little noise behind each node that rounds.
What separates the two is how far honest rounding may lead. A node that makes much of it, such as
the floor of a number next to an integer, is left out: nothing could be said of its results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import engines
import numpy as np
import onnx
from onnx import helper, numpy_helper

# Noise behind each node, relative to its largest output. Sums of many products differ most:
# Winograd's may by 1e-4 (see `tvm_blislike.choose.constraints`).
_NOISE = {"float64": 1e-9, "float32": 2e-6, "float16": 2e-3}
_NOISE_OF_SUMS = {"float64": 1e-8, "float32": 2e-5, "float16": 5e-3}
_SUMS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul", "Attention", "Einsum"])
# The operators that move, select or count without rounding.
EXACT = frozenset(
    """
    Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Clip Compress Concat Constant ConstantOfShape DepthToSpace Dropout Equal Expand EyeLike Flatten
    Floor Gather GatherElements GatherND GlobalMaxPool Greater GreaterOrEqual Hardmax Identity
    IsInf IsNaN Less LessOrEqual Max MaxPool MaxUnpool Min Neg NonZero Not OneHot Or Pad Range
    ReduceMax ReduceMin Relu Reshape ReverseSequence Round ScatterElements ScatterND Shape Sign
    Size Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
    """.split()
)
# Twins that are further apart, relative to the largest value, leave nothing to compare.
_MOST_NOISE = 5e-3
_MOST_ELEMENTS = 40_000
_LARGEST = {"float16": 1e3}


class RejectedError(Exception):
    """The node cannot be computed, or nothing could be said of its results."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the graph with its value, and its value after noise.

    Noise may leave a single value as it was, so that `rounded` tells whether there was any.
    """

    name: str
    value: np.ndarray
    twin: np.ndarray
    constant: bool = False
    rounded: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def rank(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> str:
        return str(self.value.dtype)

    @property
    def exact(self) -> bool:
        """No rounding led to it."""
        equal_nan = self.value.dtype.kind == "f"
        return not self.rounded and np.array_equal(self.value, self.twin, equal_nan=equal_nan)


class Graph:
    """The graph.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all that is random.
    opset : int
        Version of the standard operators.
    float_type : str
        What most tensors are.
    empty : bool
        Some sizes are zero.
    """

    def __init__(
        self, rng: np.random.Generator, opset: int, float_type: str = "float32", empty: bool = False
    ) -> None:
        self.rng = rng
        self.opset = opset
        self.float_type = float_type
        self.empty = empty
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.constants: list[Tensor] = []
        self._count = 0

    # Random numbers.

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self, most: int = 40) -> int:
        """Return a size: small, a power of two or next to one."""
        if self.empty and self.chance(0.1):
            return 0
        sizes = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 16, 17, 24, 28, 31, 32, 33, 40)
        return self.pick([size for size in sizes if size <= most])

    def shape(self, rank: int) -> tuple[int, ...]:
        most = {0: 1, 1: 40, 2: 40, 3: 24, 4: 17, 5: 9}.get(rank, 5)
        return tuple(self.size(most) for _ in range(rank))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        return [self.integer(low, high) for _ in range(count)]

    def maybe(self, probability: float = 0.5, /, **attributes: Any) -> dict[str, Any]:
        """Return each attribute with that probability: defaults are tested as well."""
        return {name: v for name, v in attributes.items() if self.chance(probability)}

    # Tensors.

    def values(self, shape: Sequence[int], dtype: str, kind: str = "any") -> np.ndarray:
        """Return random values; kind is any, positive, or unit (from -1 to 1, both excluded)."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if np.dtype(dtype).kind in "iu":
            low = 1 if kind == "positive" else 0 if dtype.startswith("u") else -6
            return self.rng.integers(low, 7, shape).astype(dtype)
        if kind == "unit":
            return self.rng.uniform(-0.95, 0.95, shape).astype(dtype)
        drawn = self.rng.standard_normal(shape)
        style = self.rng.random()
        if style < 0.15:
            drawn = np.round(2 * drawn)  # with ties, and zeros
        elif style < 0.3:
            drawn = np.round(8 * drawn) / 8
        return (0.25 + np.abs(drawn) if kind == "positive" else drawn).astype(dtype)

    def input(self, value: np.ndarray) -> Tensor:
        """Add an input of the graph."""
        tensor = Tensor(self.name("x"), value, value)
        self.inputs.append(tensor)
        self.tensors.append(tensor)
        return tensor

    def constant(self, value: Any, dtype: str | None = None) -> Tensor:
        """Add a constant: an initializer, or now and then a node."""
        array = np.array(value, dtype)
        if self.chance(0.15):
            proto = numpy_helper.from_array(array)
            node = helper.make_node("Constant", [], [self.name("c")], value=proto)
            self.nodes.append(node)
            tensor = Tensor(node.output[0], array, array, constant=True)
        else:
            tensor = Tensor(self.name("w"), array, array, constant=True)
            self.constants.append(tensor)
        return tensor

    def weights(self, shape: Sequence[int], dtype: str, scale: float = 1.0) -> Tensor:
        """Return a constant of random values, now and then one that the graph has already."""
        known = [t for t in self.constants if t.shape == tuple(shape) and t.dtype == dtype]
        if known and self.chance(0.5):
            return self.pick(known)
        return self.constant((scale * self.values(shape, dtype)).astype(dtype))

    def tensor(
        self,
        dtypes: Sequence[str] = (),
        rank: int | Sequence[int] | None = None,
        fits: Callable[[np.ndarray], bool] = lambda value: True,
        kind: str = "any",
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        """Return a tensor of the graph that is suitable, or a new input.

        Parameters
        ----------
        dtypes : sequence of str
            Allowed types; the graph's float type when empty.
        rank : int or sequence of int
            Allowed ranks, by default 0 to 5.
        fits : callable
            What else its value must satisfy.
        kind : str
            Of the values of a new input, see `values`.
        shape : sequence of int, optional
            The shape it must have.
        """
        dtypes = dtypes or (self.float_type,)
        ranks = (rank,) if isinstance(rank, int) else rank
        known = [
            t
            for t in self.tensors
            if t.dtype in dtypes
            and (ranks is None or t.rank in ranks)
            and (shape is None or t.shape == tuple(shape))
            and fits(t.value)
        ]
        if known and self.chance(0.85):
            # The latest ones more often: graphs become deep.
            return known[-1] if self.chance(0.6) else self.pick(known)
        if shape is None:
            shape = self.shape(self.pick(ranks if ranks else (0, 1, 2, 3, 4, 4, 4, 5)))
        for _ in range(5):
            value = self.values(shape, self.pick(dtypes), kind)
            if fits(value):
                return self.constant(value) if self.chance(0.05) else self.input(value)
        raise RejectedError("no such tensor")

    # Nodes.

    def node(
        self, operator: str, operands: Sequence[Tensor | None], outputs: int = 1, **attributes: Any
    ) -> list[Tensor]:
        """Add a node; return its outputs.

        Raises
        ------
        RejectedError
            When it cannot be computed, is too large, or amplifies rounding too much.
        """
        names = [t.name if t is not None else "" for t in operands]
        while names and not names[-1]:
            names.pop()
        results = [self.name("t") for _ in range(outputs)]
        label = f"{operator}_{self._count}" if self.chance(0.7) else ""
        # ONNX cannot tell the type of an empty list; no operator has one that means anything.
        attributes = {name: v for name, v in attributes.items() if v != []}
        node = helper.make_node(operator, names, results, name=label, **attributes)
        present = [t for t in operands if t is not None] + self._read_inside(node)
        values = self._computed(node, {t.name: t.value for t in present})
        twins = self._noisy(node, present, values)
        rounded = operator not in EXACT or any(t.rounded for t in present)
        added = [
            Tensor(*item, rounded=rounded) for item in zip(results, values, twins, strict=True)
        ]
        self.nodes.append(node)
        self.tensors.extend(added)
        return added

    def _read_inside(self, node: onnx.NodeProto) -> list[Tensor]:
        """Return the tensors that the branches of a node read."""
        branches = [a.g for a in node.attribute if a.HasField("g")]
        read = {name for branch in branches for inner in branch.node for name in inner.input}
        return [t for t in (*self.tensors, *self.constants) if t.name in read]

    def _computed(self, node: onnx.NodeProto, operands: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            values = engines.compute_node(node, operands, self.opset)
        except engines.CannotComputeError as error:
            raise RejectedError(str(error)) from error
        for value in values:
            if not isinstance(value, np.ndarray) or value.size > _MOST_ELEMENTS:
                raise RejectedError("no tensor, or too large")
            if value.dtype.kind not in "fiub":
                raise RejectedError("a type that NumPy lacks")
            if value.dtype.kind == "f":
                largest = _LARGEST.get(str(value.dtype), 1e6)
                if not np.isfinite(value).all() or np.abs(value).max(initial=0) > largest:
                    raise RejectedError("not finite, or large")
        return values

    def _noisy(
        self, node: onnx.NodeProto, operands: Sequence[Tensor], values: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the outputs' twins."""
        twins = values
        if not all(t.exact for t in operands):
            twins = self._computed(node, {t.name: t.twin for t in operands})
        if node.op_type not in EXACT:
            levels = _NOISE_OF_SUMS if node.op_type in _SUMS else _NOISE
            twins = [self._with_noise(twin, levels) for twin in twins]
        for value, twin in zip(values, twins, strict=True):
            if value.shape != twin.shape or _apart(value, twin) > _MOST_NOISE:
                raise RejectedError("rounding would decide")
        return list(twins)

    def _with_noise(self, value: np.ndarray, levels: dict[str, float]) -> np.ndarray:
        if value.dtype.kind != "f" or not value.size:
            return value
        scale = levels[str(value.dtype)] * float(np.abs(value).max())
        return (value + scale * self.rng.standard_normal(value.shape)).astype(value.dtype)

    def name(self, prefix: str) -> str:
        """Return a name that no tensor has."""
        self._count += 1
        return f"{prefix}{self._count}"

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what the block added when it is rejected."""
        lists = (self.nodes, self.tensors, self.inputs, self.constants)
        lengths = [len(items) for items in lists]
        try:
            yield
        except RejectedError:
            for items, length in zip(lists, lengths, strict=True):
                del items[length:]


def _apart(value: np.ndarray, twin: np.ndarray) -> float:
    """Return the distance of two arrays relative to the largest value; infinite for integers."""
    if value.dtype.kind != "f":
        return 0.0 if np.array_equal(value, twin) else np.inf
    if not value.size:
        return 0.0
    scale = float(np.abs(value).max()) or 1.0
    return float(np.abs(value.astype("f8") - twin.astype("f8")).max()) / scale
