"""A fused layer taken apart, to be computed for other images: those of a slab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, te, tirx

from tvm_blislike.cost_models.conv_geometry import TiledConfig
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.common import root_block, stages
from tvm_blislike.schedules.conditions import primfunc_of
from tvm_blislike.schedules.lowering.lower import lower
from tvm_blislike.schedules.lowering.rewrite import collect, constant, substitute
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NO_ALIAS
from tvm_blislike.tvm_seams.schedules import Schedule


@dataclass(frozen=True)
class Layer:
    """A convolution and what is fused behind it, element by element.

    Parameters
    ----------
    workload, config : Conv2dWorkload, TiledConfig
        Of the convolution.
    params : tuple of Buffer
        Parameters of its function, in order.
    data, packed, result : Buffer
        Three of them.
    others : tuple of Buffer
        The other parameters: operands of what follows.
    sums : Buffer
        The convolution's own result.
    axes : tuple of Var
        Indices of an element of the result.
    value : expression
        The element, of loads of `sums` and `others`.
    """

    workload: Conv2dWorkload
    config: TiledConfig
    params: tuple[Any, ...]
    data: Any
    packed: Any
    result: Any
    others: tuple[Any, ...]
    sums: Any
    axes: tuple[Any, ...]
    value: Any

    @staticmethod
    def of(func: tirx.PrimFunc, workload: Conv2dWorkload, config: TiledConfig) -> Layer | None:
        """Return the layer that an unscheduled function computes.

        None where something else is computed as well: a padded copy, or another shape.
        """
        sch = Schedule(func.with_attr("global_symbol", "main"))
        marked = stages(sch)
        if marked.keys() != {"acc", "unpack"}:
            return None
        output = _joined(sch, marked["unpack"])
        block, sums = sch.get(output), sch.get(marked["unpack"]).writes[0].source
        params = list(sch.mod["main"].params)
        read = {load.source for load in collect(sch.get(marked["acc"]).body, ir.TensorLoad)}
        operands = [p for p in params if p in read]
        shape = Layout(config.data_layout).shape(*workload.images[0])
        data = [p for p in operands if _shape(p) == shape]
        if len(operands) != 2 or len(data) != 1 or not isinstance(block.body, tirx.BufferStore):
            return None
        (packed,) = (p for p in operands if p is not data[0])
        others = tuple(p for p in params[:-1] if p not in operands)
        axes = tuple(each.var for each in block.iter_vars)
        is_bare = sch.get(marked["unpack"]).name_hint == block.name_hint
        value = tirx.BufferLoad(sums, list(axes)) if is_bare else block.body.value
        given = (tuple(params), data[0], packed, params[-1], others)
        layer = Layer(workload, config, *given, sums, axes, value)
        return layer if layer._is_plain(block.body) else None

    def arguments(self, given: Sequence[Any]) -> dict[Any, Any]:
        """Return the argument of each parameter but the result."""
        return dict(zip(self.params[:-1], given, strict=True))

    @property
    def height(self) -> int:
        """The axis of the rows of the result."""
        return Layout(self.config.out_layout).height_axis

    def _is_plain(self, store: Any) -> bool:
        """Whether elements of the result are made of those at the same place, or of all rows."""
        whole = _shape(self.sums)
        loads = collect(self.value, ir.TensorLoad)
        known = {self.sums, *self.others}
        return (
            _shape(self.result) == whole
            and list(store.indices) == list(self.axes)
            and all(load.source in known and self._is_aligned(load, whole) for load in loads)
        )

    def _is_aligned(self, load: Any, whole: tuple[int, ...]) -> bool:
        shape = _shape(load.source)
        at = zip(load.indices, self.axes, shape, whole, strict=False)
        return len(shape) == len(whole) and all(
            (size == extent and index.same_as(axis)) or (size == 1 and constant(index) == 0)
            for index, axis, size, extent in at
        )

    def is_of_rows(self, operand: Any) -> bool:
        """Whether an operand has a row for each row of the result."""
        shape, whole = _shape(operand), _shape(self.result)
        return shape[self.height] == whole[self.height]

    def of_slab(self, workload: Conv2dWorkload, config: TiledConfig, core: Core) -> tirx.PrimFunc:
        """Return the lowered function of the layer for an image of the size of a slab.

        Its parameters are as in the layer: data, packed, others, result; for one thread.
        """
        implementation = get_implementation(config.implementation)

        def defined() -> list[te.Tensor]:
            shape = Layout(config.data_layout).shape(*workload.images[0])
            data = te.placeholder(shape, self.data.dtype, name="data")
            packed = te.placeholder(_shape(self.packed), self.packed.dtype, name="packed")
            others = {
                p: te.placeholder(self._slab_shape(p, workload), p.dtype, name=f"operand_{number}")
                for number, p in enumerate(self.others)
            }
            sums = implementation.compute(workload, config, data, packed)
            return [data, packed, *others.values(), self._followed(sums, others)]

        sch = Schedule(primfunc_of(defined))
        implementation.schedule(sch, workload, config, core, 1)
        registers = core.vector_registers * core.vector_bits // 8
        func = sch.mod["main"].with_attr({REGISTER_BYTES: registers, **IS_SCHEDULED, **NO_ALIAS})
        return lower(tvm.IRModule({"main": func}))["main"]

    def _slab_shape(self, operand: Any, workload: Conv2dWorkload) -> tuple[int, ...]:
        shape = list(_shape(operand))
        shape[0] = min(shape[0], 1)
        if self.is_of_rows(operand):
            shape[self.height] = workload.oh
        return tuple(shape)

    def _followed(self, sums: te.Tensor, others: Mapping[Any, te.Tensor]) -> te.Tensor:
        """Return the result of what follows the convolution."""
        made = {self.sums: sums, **others}

        def element(*index: Any) -> Any:
            def load(access: Any) -> Any:
                return made[access.source](*access.indices)

            value = substitute(self.value, dict(zip(self.axes, index, strict=True)))
            return tvm_ffi.structural_map(value, [(ir.TensorLoad, load)])

        return te.compute(sums.shape, element, name="followed")


def _joined(sch: s_tir.Schedule, unpack: Any) -> Any:
    """Inline all that follows the convolution into one block; return it."""
    root = root_block(sch)
    (output,) = sch.get_output_blocks(root)
    kept = {sch.get(block).name_hint for block in (*stages(sch).values(), output)}
    for block in sch.get_child_blocks(root):
        if sch.get(block).name_hint not in kept:
            sch.compute_inline(block)
    return output


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)
