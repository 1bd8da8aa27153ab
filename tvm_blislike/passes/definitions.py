"""What the call of a planned layer is made of: its packed weights and its kernel's definition.

Threads make both ahead of the calls: NumPy and TVM leave Python's lock alone while they pack and
define, which is nine tenths of the time that emitting a ResNet-50 takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import tvm
from tvm import relax, te, tirx

from tvm_blislike.model.choice import Choice
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import CHOICE, STAGE
from tvm_blislike.operators import operator_of
from tvm_blislike.passes.batches.images import tensor_bytes
from tvm_blislike.passes.gated_weights import packed_product
from tvm_blislike.passes.plan import Plan
from tvm_blislike.schedules.common import stages
from tvm_blislike.schedules.conditions import primfunc_of
from tvm_blislike.side_by_side import code_threads
from tvm_blislike.tvm_seams import (
    bindings,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    static_shape,
)
from tvm_blislike.tvm_seams.attributes import FUSES_WHAT_FOLLOWS, NO_ALIAS
from tvm_blislike.tvm_seams.schedules import Schedule

Shape = tuple[int, ...]


class Definitions:
    """Packed weights by layer, and unscheduled PrimFuncs by the note of their choice.

    Layers of the same choice share one.

    Parameters
    ----------
    plan : Plan
        Notes the choices.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._packed: dict[relax.Var, Future[relax.Expr]] = {}
        self._begun: dict[str, Future[tirx.PrimFunc]] = {}
        self._made: dict[str, tirx.PrimFunc] = {}

    def begin(self, mod: tvm.IRModule, threads: Executor) -> None:
        """Have threads make what is known of a module's calls before they are emitted."""
        target = tvm.target.Target.current()

        def submitted(make: Callable[[], object]) -> Future:
            return threads.submit(_within, target, make)

        found = [
            (binding.var, choice, binding.value.args[1])
            for _, func in functions(mod)
            for binding in bindings(func)
            if (choice := self._plan.choices.get(binding.var)) is not None
            and is_constant(binding.value.args[1])
        ]
        # The most work first, so that threads end together.
        for layer, choice, operand in sorted(found, key=lambda each: -tensor_bytes(each[2])):
            self._begin(layer, choice, operand, submitted)

    def _begin(
        self,
        layer: relax.Var,
        choice: Choice,
        operand: relax.Constant,
        submitted: Callable[[Callable[[], object]], Future],
    ) -> None:
        data, shape = _call_shapes(choice, operand)
        note = self._plan.note(choice)
        packed = submitted(lambda: _packed(choice, operand, shape))
        self._packed[layer] = packed
        if note not in self._begun:
            # Behind the packing, in the order of work: who waits for it waits for one that runs.
            self._begun[note] = submitted(lambda: _defined(choice, note, data, packed.result()))

    def packed(
        self, builder: relax.BlockBuilder, layer: relax.Var, choice: Choice, operand: relax.Expr
    ) -> relax.Expr:
        """Return a layer's second operand as its kernel takes it.

        Parameters
        ----------
        builder : relax.BlockBuilder
            Where to emit what packs an operand that is not constant.
        layer : relax.Var
            The result.
        choice : Choice
            What computes it.
        operand : relax.Expr
            In the shape of the choice, not yet packed.
        """
        if layer in self._packed:
            return self._packed.pop(layer).result()
        if is_constant(operand):
            return _packed(choice, operand, static_shape(operand))
        implementation, workload, config = choice.implementation, choice.workload, choice.config
        product = packed_product(builder, operand, partial(implementation.pack, workload, config))
        if product is not None:
            return builder.emit(product)
        return builder.emit_te(
            lambda t: implementation.pack_te(workload, config, t),
            operand,
            primfunc_name_hint=f"{config.implementation}_pack",
        )

    def primfunc(self, choice: Choice, data: Shape, packed: relax.Expr) -> tirx.PrimFunc:
        """Return the unscheduled PrimFunc of a choice; see `primfunc`."""
        note = self._plan.note(choice)
        if note not in self._made:
            begun = self._begun.get(note)
            made = begun.result() if begun else _defined(choice, note, data, packed)
            self._made[note] = made
        return self._made[note]


@contextlib.contextmanager
def definitions(mod: tvm.IRModule, plan: Plan) -> Iterator[Definitions]:
    """Give what the calls of a module's planned layers are made of, while they are emitted.

    Where that fails or the user interrupts, what has not begun never does.
    """
    found, threads = Definitions(plan), code_threads()
    if threads == 1:
        yield found
        return
    with ThreadPoolExecutor(threads, "tvm-blislike-pack") as pool:
        try:
            found.begin(mod, pool)
            yield found
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def primfunc(
    choice: Choice, note: str, data_shape: Shape, packed_shape: Shape, packed_dtype: str
) -> tirx.PrimFunc:
    """Return the unscheduled PrimFunc (data, packed operand, result), which notes its choice."""
    workload, config = choice.workload, choice.config

    def defined() -> list[te.Tensor]:
        data = te.placeholder(data_shape, workload.types.a, name="data")
        packed = te.placeholder(packed_shape, packed_dtype, name="packed")
        return [data, packed, choice.implementation.compute(workload, config, data, packed)]

    sch = Schedule(primfunc_of(defined))
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    if "unpack" not in stages(sch):
        sch.annotate(output, STAGE, "unpack")
    sch.annotate(output, CHOICE, note)
    return (
        sch.mod["main"].without_attr("global_symbol").with_attr({**FUSES_WHAT_FOLLOWS, **NO_ALIAS})
    )


def _call_shapes(choice: Choice, operand: relax.Expr) -> tuple[Shape, Shape]:
    """Return the shapes in which a layer's operands come to its kernel, unpacked."""
    workload = choice.workload
    if workload.images:
        sizes, _ = workload.images
        return Layout(choice.layouts[0]).shape(*sizes), static_shape(operand)
    data, other = operator_of(workload).call_shapes(workload)
    return data, other


def _packed(choice: Choice, operand: relax.Constant, shape: Shape) -> relax.Constant:
    array = constant_array(operand).reshape(shape)
    return relax.const(choice.implementation.pack(choice.workload, choice.config, array))


def _defined(choice: Choice, note: str, data: Shape, packed: relax.Expr) -> tirx.PrimFunc:
    return primfunc(choice, note, data, static_shape(packed), dtype_name(packed))


def _within(target: tvm.target.Target | None, make: Callable[[], object]) -> object:
    """Return what a function makes for a target, which each thread has to be told."""
    with target or contextlib.nullcontext():
        return make()
