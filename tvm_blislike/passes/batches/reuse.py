"""What passes between two uses of a tensor: whether a cache still has it when it is read.

A size alone does not tell. A layer of a batch writes 26 MB and reads a shortcut of 26 MB for that:
each of them would fit into a cache of 32 MB, but the next layer finds little of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import relax

from tvm_blislike.passes.batches.axes import RESHAPES
from tvm_blislike.passes.batches.images import tensor_bytes, tensors_of
from tvm_blislike.tvm_seams import is_constant, op_name


@dataclass(frozen=True)
class Read:
    """A tensor that a kernel reads.

    Parameters
    ----------
    size : int
        Its bytes.
    images : int
        Bytes of images that pass from its last use on, itself among them.
    weights : int
        Bytes of constants that pass.
    tensor : relax.Var, optional
        The tensor: what the first operator of the kernel that computes it is bound to.
    """

    size: int
    images: int
    weights: int
    tensor: relax.Var | None = field(default=None, compare=False)


def reads_of(
    bindings: Sequence[relax.VarBinding], fused: Iterable[str]
) -> dict[relax.Var, list[Read]]:
    """Return, for each variable of bindings, what its value reads from what others have computed.

    Parameters
    ----------
    bindings : sequence of relax.VarBinding
        Of one dataflow block, in order.
    fused : iterable of str
        Operators that join the kernel of what they read; what they read besides is theirs.

    Returns
    -------
    dict
        Without what is a parameter and was not read before: nobody knows where that is.
    """
    memory: dict[relax.Var, relax.Var] = {}
    kernels: list[dict[relax.Expr, int]] = []
    found: dict[relax.Var, list[Read]] = {}
    for binding in bindings:
        var, value = binding.var, binding.value
        if not isinstance(value, relax.Call):
            if isinstance(value, relax.Var):
                memory[var] = memory.get(value, value)
            continue
        operands = [t if is_constant(t) else memory.get(t, t) for t in tensors_of(value)]
        variables = [tensor for tensor in operands if isinstance(tensor, relax.Var)]
        if op_name(value) in RESHAPES and variables:
            memory[var] = variables[0]
            continue
        joined = _joined(variables, kernels) if op_name(value) in fused else None
        if joined is None:
            kernels.append({var: tensor_bytes(value)})
        else:
            memory[var] = joined
        read = [tensor for tensor in variables if joined is None or not tensor.same_as(joined)]
        passed = [_passed(tensor, kernels) for tensor in read]
        found[var] = [each for each in passed if each is not None]
        kernels[-1] |= {tensor: tensor_bytes(tensor) for tensor in operands}
    return found


def _joined(
    variables: Sequence[relax.Var], kernels: Sequence[Mapping[relax.Expr, int]]
) -> relax.Var | None:
    """Return which of the variables the kernel before has computed, if it is one of them."""
    last = next(iter(kernels[-1])) if kernels else None
    return next((each for each in variables if each.same_as(last)), None)


def _passed(tensor: relax.Var, kernels: Sequence[Mapping[relax.Expr, int]]) -> Read | None:
    """Return what passes between the last use of a tensor and the last of the kernels."""
    users = [number for number, kernel in enumerate(kernels) if tensor in kernel]
    # What this kernel reads anyway comes once.
    if not users or users[-1] == len(kernels) - 1:
        return None
    between: dict[relax.Expr, int] = {}
    for kernel in kernels[users[-1] : -1]:
        between |= kernel
    weights = sum(size for each, size in between.items() if not isinstance(each, relax.Var))
    return Read(tensor_bytes(tensor), sum(between.values()) - weights, weights, tensor)
