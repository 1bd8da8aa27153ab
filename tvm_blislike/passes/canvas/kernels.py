"""Kernels of a canvas: where open sizes stand in them, and who reads beyond whose images."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import relax, tirx

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.canvas import LOWEST, ZERO, Margin
from tvm_blislike.model.marks import CONCAT
from tvm_blislike.model.variant import MAIN
from tvm_blislike.passes.canvas.axes import OpenAxes, OpenKernel
from tvm_blislike.passes.canvas.conditions import require_in_place
from tvm_blislike.passes.canvas.margins import (
    UNKNOWN_REACH,
    Beyond,
    joined,
    of_default,
    of_layer,
)
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import note_in
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams import bindings, is_constant, op_name, static_shape


@dataclass
class Kernel:
    """A kernel of the canvas.

    Parameters
    ----------
    opened : OpenKernel
        Its function, and where open sizes stand in it.
    near : int
        How many rows beyond an image it may read of what it copies.
    margins : dict
        By the place of a result, what its readers want beyond it.
    """

    opened: OpenKernel
    near: int = 0
    margins: dict[int, set[Beyond]] = field(default_factory=lambda: defaultdict(set))

    @property
    def func(self) -> tirx.PrimFunc:
        """Not scheduled."""
        return self.opened.func

    @property
    def axes(self) -> Sequence[dict[int, tuple[int, int]]]:
        """For each parameter, open axes to the size that they follow from and their number."""
        return self.opened.axes

    @property
    def is_open(self) -> bool:
        """Whether any of its parameters has an open size."""
        return any(self.axes)


@dataclass
class Kernels:
    """What there is to know of fused kernels before their module becomes one of open sizes.

    Parameters
    ----------
    fused : IRModule
        Of the canvas.
    plan : Plan
        What its layers are computed by.
    axes : OpenAxes
        Where open sizes stand.
    known : dict
        Kernels by name.
    inputs : dict
        Parameters of `main` to what readers want beyond them.

    Raises
    ------
    SizesMeetError
        When one of them cannot have open sizes; the text says why.
    """

    fused: tvm.IRModule
    plan: Plan
    axes: OpenAxes
    known: dict[str, Kernel] = field(default_factory=dict)
    inputs: dict[relax.Var, set[Beyond]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        """Find out what all of them read."""
        # Each tensor to the kernel that makes it, and the place of the result.
        self._makers: dict[relax.Var, tuple[Kernel, int]] = {}
        found = list(bindings(self.fused[MAIN]))
        for binding in found:
            self._enter(binding)
        # Parts of a concatenation are written in its place: they have the margins of the whole.
        for binding in reversed(found):
            kernel, result = self._makers.get(binding.var, (None, 0))
            if kernel is not None and CONCAT in (kernel.func.attrs or {}):
                for part in binding.value.args[1].fields:
                    self._beyond(part).update(kernel.margins[result])

    def margin(self, kernel: Kernel, place: int) -> Margin | None:
        """Return what a kernel has to write beyond a result."""
        wanted: Collection[Beyond] = kernel.margins.get(place, ())
        if _is_nonnegative(kernel.func):
            # Nothing is below zeros.
            wanted = [replace(b, value=ZERO) if b.value == LOWEST else b for b in wanted]
        return self._joined(wanted, kernel.axes[place])

    def margin_of_input(self, param: relax.Var) -> Margin | None:
        """Return what has to lie beyond an input."""
        return self._joined(self.inputs[param], self.axes.of(static_shape(param)))

    def _joined(
        self, wanted: Collection[Beyond], axes: Mapping[int, tuple[int, int]]
    ) -> Margin | None:
        beyond = joined(wanted)
        if beyond is None:
            return None
        by_kind = (beyond.columns, beyond.rows)
        reach = {axis: by_kind[self.axes.kinds[size]] for axis, (size, _) in axes.items()}
        return Margin(reach, beyond.value)

    def _enter(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if op_name(call) != "relax.call_tir":
            self._require_settled(call)
            return
        kernel = self._kernel_of(call)
        if isinstance(binding.var.ty, relax.TupleType) and kernel.is_open:
            raise SizesMeetError(f"{call.args[0].name_hint} has several results")
        operands = call.args[1].fields
        for place, operand in enumerate(operands):
            beyond = self._read_beyond(kernel, place) if kernel.axes[place] else None
            if beyond is not None:
                self._beyond(operand).add(beyond)
        self._makers[binding.var] = kernel, len(operands)

    def _beyond(self, operand: relax.Var) -> set[Beyond]:
        """Return what readers want beyond a tensor."""
        if operand not in self._makers:
            return self.inputs[operand]
        kernel, place = self._makers[operand]
        return kernel.margins[place]

    def _require_settled(self, value: relax.Expr) -> None:
        """Raise where an open size goes through what is no kernel."""
        if isinstance(value, relax.Var):
            return
        for expr in (value, *getattr(value, "args", ())):
            shape = static_shape(expr) if isinstance(expr.ty, relax.TensorType) else None
            if shape is not None and not is_constant(expr) and self.axes.of(shape):
                raise SizesMeetError(f"{op_name(value)} is not known to have open sizes")

    def _kernel_of(self, call: relax.Call) -> Kernel:
        name = call.args[0].name_hint
        if name not in self.known:
            func = self.fused[call.args[0]]
            constants = [is_constant(arg) for arg in call.args[1].fields]
            pairs = itertools.zip_longest(func.params, constants, fillvalue=False)
            axes = [self._axes_of(name, param, fixed) for param, fixed in pairs]
            kernel = self.known[name] = Kernel(OpenKernel(func, axes, self.axes))
            if kernel.is_open:
                require_in_place(kernel.opened, name)
                kernel.near = self._near(func)
        return self.known[name]

    def _axes_of(self, name: str, param: tirx.Buffer, fixed: bool) -> dict[int, tuple[int, int]]:
        """Return the open axes of a kernel's parameter, which is a constant or none."""
        shape = [int(size) for size in param.shape]
        if fixed:
            self._require_no_image(name, shape)
            return {}
        found = self.axes.of(shape)
        if found and str(param.dtype) != "float32":
            raise SizesMeetError(f"{name} has images of {param.dtype}")
        return found

    def _require_no_image(self, name: str, shape: Sequence[int]) -> None:
        """Raise for a constant that has all open sizes, such as one number for each pixel."""
        image = [max(set(numbers) & set(shape), default=0) for numbers in self.axes.numbers]
        if len(shape) in (4, 5) and all(image) and _has(shape, image):
            raise SizesMeetError(f"{name} has a constant of the size of an image")

    def _read_beyond(self, kernel: Kernel, place: int) -> Beyond | None:
        note = note_in(kernel.func)
        if note is None:
            return of_default(kernel.opened, place)
        choice = self.plan.noted(note)
        beyond = of_layer(choice)
        shape = [int(size) for size in kernel.func.params[place].shape]
        # What is added to a result, of its size, is read where the result is.
        return beyond if _has(shape, [choice.workload.h, choice.workload.w]) else None

    def _near(self, func: tirx.PrimFunc) -> int:
        note = note_in(func)
        beyond = None if note is None else of_layer(self.plan.noted(note))
        reach = (0, 0) if beyond is None else (beyond.rows, beyond.columns)
        return max(UNKNOWN_REACH, *reach)


def _has(shape: Sequence[int], image: Sequence[int]) -> bool:
    return any(list(shape[at : at + 2]) == list(image) for at in range(len(shape) - 1))


def _is_nonnegative(func: tirx.PrimFunc) -> bool:
    """Whether the last stage of a kernel gives nothing below zero, as ReLU does."""
    stores = collect(func.body, tirx.BufferStore)
    value = stores[-1].value if stores else None
    if not isinstance(value, tirx.Max):
        return False
    return any(isinstance(e, tirx.FloatImm) and float(e.value) >= 0 for e in (value.a, value.b))
