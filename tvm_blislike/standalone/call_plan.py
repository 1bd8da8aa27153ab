"""A compiled model as a list of kernel calls on numbered tensors, with their places in memory.

What TVM's virtual machine would do with a module, as data, for those who call the kernels
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.tvm_seams import bindings, constant_array, is_constant, op_name, static_shape

# As aligned as TVM's own tensors, which kernels count on.
ALIGNMENT = 64
_ALIASES = ("relax.reshape", "relax.memory.ensure_zero_offset", "relax.memory.view")


@dataclass(frozen=True)
class Storage:
    """Memory of its own.

    Parameters
    ----------
    kind : str
        "input", "weight" or "workspace".
    bytes : int
        Its size.
    offset : int
        Where it begins: in the workspace or the weights, in bytes; the number of an input.
    value : array or None
        Of a weight.
    output : int or None
        Of a workspace that is one output and nothing else: which; it may be the caller's memory.
    """

    kind: str
    bytes: int
    offset: int = 0
    value: np.ndarray | None = None
    output: int | None = None


@dataclass(frozen=True)
class CallTensor:
    """A view of a storage.

    Parameters
    ----------
    storage : int
        Number of the storage.
    offset : int
        Where it begins there, in bytes.
    shape : tuple of int
        Sizes.
    dtype : str
        Data type.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass
class CallPlan:
    """The calls of a model.

    Parameters
    ----------
    storages : list of Storage
        All memory.
    tensors : list of CallTensor
        What kernels read and write, in order of appearance.
    calls : list of (str, list of int)
        Kernel and numbers of its tensors, in order of execution.
    outputs : list of int
        Tensors that are the model's outputs.
    """

    storages: list[Storage] = field(default_factory=list)
    tensors: list[CallTensor] = field(default_factory=list)
    calls: list[tuple[str, list[int]]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def total(self, kind: str) -> int:
        """Return the bytes of all storages of a kind, with the space they share counted once."""
        ends = (s.offset + s.bytes for s in self.storages if s.kind == kind)
        return max(ends, default=0)

    @property
    def workspace_bytes(self) -> int:
        """Memory of all tensors between the calls."""
        return rounded(self.total("workspace"))


def plan_calls(mod: tvm.IRModule) -> CallPlan:
    """Return the calls of a module's `main` whose kernels write into tensors allocated before.

    Raises
    ------
    UnsupportedOperatorError
        When the model does something that only TVM's virtual machine can.
    """
    reader = _Reader()
    main = mod["main"]
    for number, param in enumerate(main.params):
        size = CallTensor(0, 0, _shape(param), str(param.ty.dtype)).bytes
        reader.bind(param, reader.new(Storage("input", size, number), param))
    for binding in bindings(main):
        reader.read(binding)
    result = main.body.body
    parts = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    whole = reader.tuples.get(result, parts)
    reader.plan.outputs = [reader.number(part) for part in whole]
    return _placed(_with_outputs(reader.plan))


def _with_outputs(plan: CallPlan) -> CallPlan:
    """Mark the workspaces that are one output each."""
    used = [plan.tensors[number].storage for number in plan.outputs]
    for output, number in enumerate(plan.outputs):
        tensor = plan.tensors[number]
        storage = plan.storages[tensor.storage]
        whole = tensor.offset == 0 and tensor.bytes == storage.bytes
        if storage.kind == "workspace" and whole and used.count(tensor.storage) == 1:
            plan.storages[tensor.storage] = replace(storage, output=output)
    return plan


class _Reader:
    """Follows the bindings of a function."""

    def __init__(self) -> None:
        self.plan = CallPlan()
        self.tuples: dict[Any, list[Any]] = {}
        self._numbers: dict[Any, int] = {}

    def bind(self, var: relax.Var, number: int) -> None:
        self._numbers[var] = number

    def new(self, storage: Storage, expr: relax.Expr) -> int:
        """Add a storage and the tensor that fills it; return the tensor's number."""
        self.plan.storages.append(storage)
        tensor = CallTensor(len(self.plan.storages) - 1, 0, _shape(expr), str(expr.ty.dtype))
        return self._add(tensor)

    def number(self, expr: relax.Expr) -> int:
        """Return the tensor that an expression is."""
        if is_constant(expr):
            value = constant_array(expr)
            return self.new(Storage("weight", value.nbytes, 0, value), expr)
        if expr not in self._numbers:
            raise _needs_runtime(str(expr))
        return self._numbers[expr]

    def read(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        name = op_name(value)
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            self.plan.calls.append((value.op.name_hint, [self.number(a) for a in value.args]))
        elif name == "relax.builtin.alloc_tensor":
            size = CallTensor(0, 0, _shape(var), str(var.ty.dtype)).bytes
            self.bind(var, self.new(Storage("workspace", size), var))
        elif name in _ALIASES:
            self.bind(var, self._alias(value, var, name == "relax.memory.view"))
        elif isinstance(value, relax.Tuple):
            self.tuples[var] = list(value.fields)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self.tuples:
            self.bind(var, self.number(self.tuples[value.tuple_value][value.index]))
        elif isinstance(value, relax.Var) and value in self.tuples:
            self.tuples[var] = self.tuples[value]
        elif isinstance(value, relax.Var) or is_constant(value):
            self.bind(var, self.number(value))
        else:
            raise _needs_runtime(name or str(value))

    def _alias(self, call: relax.Call, var: relax.Var, has_offset: bool) -> int:
        source = self.plan.tensors[self.number(call.args[0])]
        offset = int(call.args[3].value) if has_offset else 0
        shape, dtype = _shape(var), str(var.ty.dtype)
        return self._add(CallTensor(source.storage, source.offset + offset, shape, dtype))

    def _add(self, tensor: CallTensor) -> int:
        self.plan.tensors.append(tensor)
        return len(self.plan.tensors) - 1


def _shape(expr: relax.Expr) -> tuple[int, ...]:
    shape = static_shape(expr)
    if shape is None:
        raise _needs_runtime(f"a tensor of a shape known at run time only ({expr})")
    return shape


def _needs_runtime(what: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"not possible without TVM's runtime: {what}", "write a library or a bundle instead"
    )


def _placed(plan: CallPlan) -> CallPlan:
    """Give weights one place after the other, and workspaces one that is free while they live."""
    lives = _lives(plan)
    placed: list[int] = []
    weights = 0
    storages = list(plan.storages)
    for number in sorted(range(len(storages)), key=lambda n: -storages[n].bytes):
        storage = storages[number]
        if storage.kind == "weight":
            storages[number] = replace(storage, offset=weights)
            weights += rounded(storage.bytes)
        elif storage.kind == "workspace":
            alive = [storages[n] for n in placed if _meet(lives[n], lives[number])]
            storages[number] = replace(storage, offset=_gap(alive, storage.bytes))
            placed.append(number)
    plan.storages = storages
    return plan


def _lives(plan: CallPlan) -> dict[int, tuple[int, int]]:
    """Return the first and last call that each storage takes part in; outputs live to the end."""
    lives: dict[int, tuple[int, int]] = {}
    uses = [*(numbers for _, numbers in plan.calls), plan.outputs]
    for step, numbers in enumerate(uses):
        for number in numbers:
            storage = plan.tensors[number].storage
            lives[storage] = (lives.get(storage, (step, step))[0], step)
    return {number: lives.get(number, (0, 0)) for number in range(len(plan.storages))}


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _gap(alive: list[Storage], size: int) -> int:
    """Return the lowest offset at which `size` bytes overlap none that are alive."""
    offset = 0
    for storage in sorted(alive, key=lambda s: s.offset):
        if storage.offset - offset >= size:
            break
        offset = max(offset, rounded(storage.offset + storage.bytes))
    return offset


def rounded(size: int) -> int:
    """Return the bytes that something takes up before the next aligned address."""
    return -(-size // ALIGNMENT) * ALIGNMENT
