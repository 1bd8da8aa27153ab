"""Bring convolutions and their neighbours into one form before anything is decided.

`STEPS` is the road: what is done, in which order, and what each step is about. A step runs only
where that occurs in the model.
"""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_blislike.choose.strategy import Seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import FEW_BITS, RECURRENT
from tvm_blislike.passes.affine import AFFINE, Affine
from tvm_blislike.passes.attention.to_kernels import Attentions
from tvm_blislike.passes.bands import Bands
from tvm_blislike.passes.binary.to_bits import COMPARING, ToBits
from tvm_blislike.passes.constants import TIDY, Folding
from tvm_blislike.passes.data_types import ConvertOperands, WidenWords
from tvm_blislike.passes.denormals import LAYERS, WithoutDenormals
from tvm_blislike.passes.few_bits.to_kernels import FewBits
from tvm_blislike.passes.filters import Filters
from tvm_blislike.passes.half_precision import HALVES, HalvesAsFloats
from tvm_blislike.passes.imported import operator_of
from tvm_blislike.passes.local_response import POOLS, local_response
from tvm_blislike.passes.normalizations import GROUP_NORM, VARIANCE, Normalizations
from tvm_blislike.passes.padding import PAD, PADDED, Padding
from tvm_blislike.passes.permutations import permutations
from tvm_blislike.passes.planar import CONVOLUTIONS, ToImages
from tvm_blislike.passes.quantized.steps import DEQUANTIZE, dequantized_constant
from tvm_blislike.passes.quantized.to_integers import QUANTIZING, ToIntegers, WhyFloats
from tvm_blislike.passes.reciprocals import SMOOTH, reciprocals
from tvm_blislike.passes.recurrent.to_kernels import Recurrent
from tvm_blislike.passes.rows import as_rows
from tvm_blislike.passes.shuffles import SHUFFLING, Shuffles
from tvm_blislike.passes.slopes import PRELU, Slopes
from tvm_blislike.passes.steps import REPEATED, SEVERAL_TYPES, Step, run_steps
from tvm_blislike.passes.unit_axes import PERMUTE, UnitAxes
from tvm_blislike.passes.whole_groups import WholeGroups
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
)

# Maxima of several tensors arrive as one stack of them and a reduction.
_OF_STACKS = {"relax.max": relax.op.maximum, "relax.min": relax.op.minimum}
# Exponents whose powers are products: TVM warns of each `pow` by them, in every kernel.
_AS_PRODUCTS = (3, 4)


@tvm.transform.module_pass(opt_level=0, name="blislike.Canonicalize")
class Canonicalize:
    """Module pass that applies these rewrites to every Relax function, for a core.

    Parameters
    ----------
    core : Core
        The target.
    why_floats : callable, optional
        See `ToIntegers`.
    threads : int
        Threads of one inference.
    is_for_many : bool
        Whether what comes of it serves smaller images or fewer rows as well.
    seconds : callable, optional
        Predicts a layer's time, for `ToImages` and `WholeGroups`.
    """

    def __init__(
        self,
        core: Core,
        why_floats: WhyFloats | None = None,
        threads: int = 1,
        is_for_many: bool = False,
        seconds: Seconds | None = None,
    ) -> None:
        self.core, self.why_floats, self.seconds = core, why_floats, seconds
        self.threads, self.is_for_many = threads, is_for_many

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        return TIDY(run_steps(mod, STEPS, self))


def _rewriting(rewriter: type, *behind: tvm.transform.Pass, **given: object) -> tvm.transform.Pass:
    """Return the pass that rewrites every Relax function by what is given, and others behind it."""

    @tvm.transform.module_pass(opt_level=0, name=f"blislike.{rewriter.__name__.lstrip('_')}")
    def rewrite(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in functions(mod):
            result.update_func(gvar, rewriter(mod, func, **given).visit_expr(func))
        return result

    return tvm.transform.Sequential([rewrite, *behind])


@mutator
class _Operators(Folding):
    """Constants to values, importer's PrimFuncs to operators, batch norms to two operators."""

    def __init__(self, mod: tvm.IRModule, _func: relax.Function) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        result = super().visit_call_(call)
        if op_name(result) in _OF_STACKS:
            return self._one_by_one(result)
        if op_name(result) == "relax.power":
            return self._product(result)
        if op_name(result) != "relax.call_tir" or not isinstance(result.args[1], relax.Tuple):
            return result
        fields = [self.known(field) for field in result.args[1].fields]
        found = operator_of(self.mod, result, fields)
        return result if found is None else found

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        found = super().visit_tuple_getitem_(item)
        is_item = isinstance(found, relax.TupleGetItem)
        source = self.lookup_binding(found.tuple_value) if is_item else None
        if op_name(source) == "relax.split":
            part = _part_of_channels(source, found.index)
            return found if part is None else part
        if op_name(source) == "relax.nn.batch_norm" and found.index == 0:
            normalized = self._normalized(source)
            return found if normalized is None else normalized
        return found

    def _normalized(self, call: relax.Call) -> relax.Expr | None:
        data = self.known(call.args[0])
        parameters = [self._parameter(argument) for argument in call.args[1:]]
        if call.attrs.training or any(each is None for each in parameters):
            return None
        gamma, beta, mean, variance = (each.astype(np.float64) for each in parameters)
        gamma = gamma if call.attrs.scale else np.ones_like(gamma)
        beta = beta if call.attrs.center else np.zeros_like(beta)
        scale = gamma / np.sqrt(variance + call.attrs.epsilon)
        shape = [1] * data.ty.ndim
        shape[call.attrs.axis] = -1
        scale, shift = (v.reshape(shape) for v in (scale, beta - mean * scale))
        if is_constant(data):
            return constant(constant_array(data) * scale + shift, dtype_name(data))
        scale, shift = (constant(each, dtype_name(data)) for each in (scale, shift))
        scaled = self.builder_.emit(relax.op.multiply(data, scale))
        return relax.op.add(scaled, shift)

    def _parameter(self, expr: relax.Expr) -> np.ndarray | None:
        """Return what is known of a parameter, which quantizers give steps of 8 bits as well."""
        known = self.known(expr)
        if is_constant(known):
            return constant_array(known)
        call = self._value(known)
        is_of_steps = op_name(call) == DEQUANTIZE
        steps = dequantized_constant(call, self.known(call.args[0])) if is_of_steps else None
        return None if steps is None else steps.values

    def _one_by_one(self, call: relax.Call) -> relax.Expr:
        """Return the maxima of two that the importer stacked up; any other call as it is."""
        stack = self._value(call.args[0])
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        if op_name(stack) != "relax.stack" or int(stack.attrs.axis or 0) or axes != [0]:
            return call
        parts = self._value(stack.args[0])
        if call.attrs.keepdims or not isinstance(parts, relax.Tuple):
            return call
        operator = _OF_STACKS[op_name(call)]
        total, *rest = map(self.known, parts.fields)
        for part in rest:
            total = self.builder_.emit(operator(total, part))
        return total

    def _product(self, call: relax.Call) -> relax.Expr:
        """Return a power by a small number as products; any other call as it is."""
        base, exponent = call.args[0], self.known(call.args[1])
        if not is_constant(exponent) or constant_array(exponent).size != 1:
            return call
        array = constant_array(exponent)
        # An exponent of more axes gives its result more.
        if array.ndim > base.ty.ndim or array.item() not in _AS_PRODUCTS:
            return call
        square = self.builder_.emit(relax.op.multiply(base, base))
        return relax.op.multiply(square, base if array.item() == 3 else square)

    def _value(self, expr: relax.Expr) -> relax.Expr:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if bound is None else bound


def _part_of_channels(call: relax.Call, number: int) -> relax.Call | None:
    """Return a part of the channels of signals or images as a slice, which layouts know."""
    shape, cuts = static_shape(call.args[0]), call.attrs.indices_or_sections
    if shape is None or len(shape) not in (3, 4) or int(call.attrs.axis) % len(shape) != 1:
        return None
    if isinstance(cuts, tvm_ffi.Array):
        ends = [*(int(cut) for cut in cuts), shape[1]]
    else:
        each = -(-shape[1] // int(cuts))
        ends = [min(shape[1], each * (part + 1)) for part in range(int(cuts))]
    begin = ends[number - 1] if number else 0
    return relax.op.strided_slice(call.args[0], [1], [begin], [ends[number]])


# What is done, in order. Nothing that another step leaves is about one in front of it.
STEPS: tuple[Step[Canonicalize], ...] = (
    # Products with weights of 4 bits become calls of a kernel.
    Step(lambda given: FewBits(given.core), ({FEW_BITS},)),
    # Values of 16 bits become fp32 where the core lacks their arithmetic.
    Step(lambda given: HalvesAsFloats(given.core), (HALVES,)),
    # What depends on constants alone is computed with NumPy (TVM's FoldConstant compiles a kernel
    # for each: 17 s for a MobileNet-v2, where this takes a fraction of one). `Clip` of the importer
    # arrives as calls of the PrimFuncs `topi.maximum` and `topi.minimum`, opaque to layouts: they
    # become operators. Batch normalization becomes a scale and a shift.
    Step(lambda _given: _rewriting(_Operators, TIDY)),
    # Permutations of axes meet those that undo them.
    Step(lambda _given: permutations, ({PERMUTE},)),
    # Recurrent layers become products and calls of kernels with a loop over time.
    Step(lambda given: Recurrent(given.core, given.threads), ({RECURRENT},)),
    # Normalization across channels becomes one kernel.
    Step(
        lambda _given: tvm.transform.Sequential([local_response, TIDY]),
        (POOLS, {"relax.divide"}, {"relax.power"}),
    ),
    # Normalizations of channels or groups become operators that images have in any layout.
    Step(lambda _given: _rewriting(Normalizations, TIDY), ({GROUP_NORM, VARIANCE},)),
    # A model's own products of 16-bit integers become ones of 32; layers of signs ones of words of
    # bits, quantized models ones of integers.
    Step(lambda _given: WidenWords(), ({"int16"},)),
    Step(lambda given: ToBits(given.core), (COMPARING,)),
    Step(lambda given: ToIntegers(given.core, given.why_floats), (QUANTIZING | {"int32"},)),
    # Sums in another data type than their operands' get operands in that type.
    Step(lambda given: ConvertOperands(given.core), ({SEVERAL_TYPES},)),
    # What is written several times is computed once: Keras has an activation anew for each reader.
    # TVM finds it by hashes over all weights, 0.5 s for a VGG-16.
    Step(
        lambda _given: tvm.transform.Sequential([relax.transform.EliminateCommonSubexpr(), TIDY]),
        ({REPEATED},),
    ),
    # PReLUs and shuffles of channels, too, and parts of them.
    Step(lambda _given: _rewriting(Slopes), ({PRELU},)),
    Step(
        lambda given: _rewriting(Shuffles, TIDY, is_for_many=given.is_for_many),
        (SHUFFLING, {"relax.reshape"}),
    ),
    # Zeros around the data of a convolution become its padding.
    Step(lambda _given: _rewriting(Padding, TIDY), ({PAD}, PADDED)),
    # Signals, volumes and transposed convolutions become images.
    Step(
        lambda given: _rewriting(
            ToImages,
            TIDY,
            core=given.core,
            threads=given.threads,
            # Rows of an image depend on a signal's length.
            seconds=None if given.is_for_many else given.seconds,
        ),
        (CONVOLUTIONS,),
    ),
    # A bias and any scale or shift per channel behind a convolution with constant weights become
    # its weights and one addition.
    Step(
        lambda _given: _rewriting(Affine, relax.transform.DeadCodeElimination()),
        ({"relax.nn.conv2d"}, AFFINE),
    ),
    # Weights that are lost in every sum become zero.
    Step(lambda _given: _rewriting(WithoutDenormals), (LAYERS, {"relax.add"})),
    # Taps of dilated convolutions that lie on padding are left out.
    Step(lambda given: _rewriting(Bands, is_for_many=given.is_for_many), ({"relax.nn.conv2d"},)),
    # Groups of channels fill vectors.
    Step(
        lambda given: _rewriting(
            WholeGroups, TIDY, core=given.core, threads=given.threads, seconds=given.seconds
        ),
        ({"relax.nn.conv2d"},),
    ),
    # Outputs of filters of one channel become channels.
    Step(lambda given: _rewriting(Filters, core=given.core), ({"relax.nn.conv2d"},)),
    # Products with a softmax between them become one kernel.
    Step(
        lambda given: Attentions(given.core, given.threads),
        ({"relax.nn.softmax"}, {"relax.matmul"}),
    ),
    # Divisions by constants become products where no last bit counts.
    Step(lambda _given: reciprocals, ({"relax.divide"}, SMOOTH)),
    # Reshapes behind permutations that move nothing skip these.
    Step(lambda _given: _rewriting(UnitAxes, TIDY), ({PERMUTE}, {"relax.reshape"})),
    # Rows of several matrices become those of one.
    Step(lambda _given: as_rows, ({"relax.matmul", "relax.reshape"},)),
)
