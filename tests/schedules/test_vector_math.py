"""Polynomial functions against numpy in double precision, over all of float32."""

import functools
import math
import re
import time

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.schedules.lowering.opaque_names import opaque_names
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.schedules.lowering.vector_functions import exp_below_one
from tvm_blislike.schedules.lowering.vector_math import vectorize_math
from tvm_blislike.tvm_seams.pipelines import lower_blocks

LANES = 16
LIBRARY_CALL = r"\b(expf|tanhf|coshf|sinhf|erff|logf|powf)\b"
# Signed zeros, infinities and denormals; then the limits of exp: largest finite, first
# infinite, first denormal, last before zero; then where the pieces of the functions meet.
SPECIAL = np.array(
    """0 -0 inf -inf nan 1e-45 -1e-45 1.1754944e-38 -1.1754944e-38 3.4028235e38
    88.72283 88.72284 -87.336 -103.27 -103.97 -103.98 -104.1
    1 -1 0.625 -0.625 3.92 -3.92 4 -4 10 -10 30 30.1 1.4142135 0.70710677 0.99999994""".split(),
    "float32",
)


def samples():
    """Every 4096th bit pattern of float32, the special ones, and the usual range densely."""
    patterns = (np.arange(1 << 20, dtype="uint64") * 4096 + 1371).astype("uint32")
    usual = np.random.default_rng(3).uniform(-12, 12, 1 << 18).astype("float32")
    x = np.concatenate([SPECIAL, patterns.view("float32"), usual])
    return np.concatenate([x, np.ones(-len(x) % LANES, "float32")])


def wide(function):
    """Evaluate in double precision, silently: overflow and NaN are part of the range."""

    def evaluate(x):
        with np.errstate(all="ignore"):
            return function(x.astype("float64"))

    return evaluate


def reference_sigmoid(x):
    # No result is denormal, nor is its product with any usual weight.
    x = np.where(x < -64, -64, x)
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


FUNCTIONS = {
    "exp": (te.exp, wide(np.exp)),
    "sigmoid": (te.sigmoid, wide(reference_sigmoid)),
    "tanh": (te.tanh, wide(np.tanh)),
    "cosh": (te.cosh, wide(np.cosh)),
    "sinh": (te.sinh, wide(np.sinh)),
    "erf": (te.erf, wide(np.vectorize(math.erf))),
    "log": (te.log, wide(np.log)),
}


def compiled(function, count, rewrite=vectorize_math, target="llvm"):
    """Compile `function` over `count` elements in vectors; return a numpy function."""
    x = te.placeholder((count,), "float32", name="x")
    body = te.create_prim_func([x, te.compute((count,), lambda i: function(x[i]), name="y")])
    sch = tvm.s_tir.Schedule(body)
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, LANES])[1])
    module = tvm.IRModule({"main": rewrite(sch.mod["main"])})
    library = tvm.compile(module, tvm.target.Target(target))

    def evaluate(values):
        result = tvm.runtime.tensor(np.empty(count, "float32"))
        library["main"](tvm.runtime.tensor(values), result)
        return result.numpy()

    evaluate.assembly = library.mod.inspect_source("asm")
    return evaluate


@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_range(name):
    function, reference = FUNCTIONS[name]
    x = samples()
    evaluate = compiled(function, len(x))
    actual, expected = evaluate(x), reference(x)
    with np.errstate(over="ignore"):
        rounded = expected.astype("float32")
    finite = np.isfinite(rounded) & np.isfinite(actual)
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    error = np.abs(actual[finite].astype("float64") - expected[finite])
    assert (error / np.spacing(np.abs(rounded[finite]))).max() < 4


WIDE = native_core().vector_bits >= 512
without_division = functools.partial(vectorize_math, divides=False)


@pytest.mark.skipif(not WIDE, reason="no vectors of 64 bytes: quotients stay divisions")
@examples(12)
@given(st.floats(2.0**-60, 2.0**60, width=32), st.sampled_from([1, -1]))
def test_quotients_by_constants_are_exact(divisor, sign):
    divisor *= sign
    x = samples()
    evaluate = compiled(
        lambda v: v / tirx.const(divisor, "float32"),
        len(x),
        without_division,
        native_core().target_config(1),
    )
    with np.errstate(all="ignore"):
        expected = x / np.float32(divisor)
        # Remainders of others may be denormal, or quotients infinite.
        usual = (np.abs(x) > 2.0**-60) & (np.abs(expected) > 2.0**-60) | ~np.isfinite(x) | (x == 0)
    np.testing.assert_array_equal(evaluate(x)[usual], expected[usual])


def test_weights_of_a_softmax():
    x = -np.abs(samples())
    target = native_core().target_config(1)
    actual = compiled(lambda v: exp_below_one(v + 0.0), len(x), target=target)(x)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(x))
    assert (actual[x < -87] == 0).all()
    for lowest, most in ((-30, 4), (-87, 8)):
        inside = x >= lowest
        expected = np.exp(x[inside].astype("float64"))
        units = np.spacing(expected.astype("float32"))
        assert (np.abs(actual[inside] - expected) / units).max() < most


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_library_call_is_left(name):
    assembly = compiled(FUNCTIONS[name][0], 4 * LANES).assembly
    assert not re.search(LIBRARY_CALL, assembly)


def test_plain_tvm_calls_the_library():
    """What the rewriting is for; when this fails, TVM has learnt it and the file can go."""
    assert re.search(LIBRARY_CALL, compiled(te.exp, 4 * LANES, rewrite=lambda f: f).assembly)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.25, 1.5, 2.0, -0.5, -0.75, -1.0])
def test_power(exponent):
    x = np.abs(samples())
    evaluate = compiled(lambda v: te.power(v, tirx.const(exponent, "float32")), len(x))
    with np.errstate(all="ignore"):
        expected = x.astype("float64") ** exponent
        rounded = expected.astype("float32")
    # The factors of a negative power overflow before their inverse reaches the denormals.
    normal = np.isfinite(rounded) & (np.abs(rounded) >= (2.0**-126 if exponent < 0 else 0))
    np.testing.assert_allclose(evaluate(x)[normal], expected[normal], rtol=5e-7, atol=1e-44)


@pytest.mark.parametrize("exponent", [0.25, 0.75, -0.25, -0.75])
def test_power_of_special_values(exponent):
    x = np.resize(np.array([0, np.inf, np.nan, -1, -np.inf, 1e-45, 3e38], "float32"), 112)
    with np.errstate(all="ignore"):
        expected = np.where(x < 0, np.nan, np.abs(x).astype("float64") ** exponent)
    evaluate = compiled(lambda v: te.power(v, tirx.const(exponent, "float32")), len(x))
    np.testing.assert_allclose(evaluate(x), expected, rtol=5e-7)


def test_quotient_by_a_power():
    x = np.linspace(0.5, 90, 160).astype("float32")
    evaluate = compiled(lambda v: v / te.power(v + 1.0, tirx.const(0.75, "float32")), len(x))
    np.testing.assert_allclose(evaluate(x), x / (x.astype("float64") + 1) ** 0.75, rtol=6e-7)


def test_functions_of_functions_compile_quickly():
    x = np.linspace(-20, 20, 4 * LANES * 25, dtype="float32")
    started = time.perf_counter()
    evaluate = compiled(lambda v: v * te.tanh(te.log(te.exp(-te.abs(v)) + 1.0)), len(x))
    # Their bindings inside one another took TVM's simplifier minutes.
    assert time.perf_counter() - started < 10
    wide = x.astype("float64")
    expected = wide * np.tanh(np.log1p(np.exp(-np.abs(wide))))
    np.testing.assert_allclose(evaluate(x), expected, rtol=2e-5, atol=1e-6)
    assert not re.search(LIBRARY_CALL, evaluate.assembly)


def test_functions_of_a_choice_compile_quickly():
    """Image pixels of the im2col convolution, some of them in another block, then silu of silu."""
    x = np.linspace(-20, 20, 4 * LANES * 25, dtype="float32")

    def function(v):
        chosen = te.if_then_else(v > 1.0, v, v - 3.0)
        for _ in range(3):
            chosen = chosen * te.sigmoid(chosen)
        return chosen

    started = time.perf_counter()
    evaluate = compiled(function, len(x))
    assert time.perf_counter() - started < 10
    expected = np.where(x > 1, x, x - 3).astype("float64")
    for _ in range(3):
        expected /= 1 + np.exp(-expected)
    np.testing.assert_allclose(evaluate(x), expected, rtol=2e-5, atol=1e-6)


def test_functions_behind_a_condition_stay_behind_it():
    def function(v):
        inner = te.exp(v)
        return te.if_then_else(v > 0.0, te.log(inner), te.tanh(inner))

    x = samples()[: 16 * LANES]
    evaluate = compiled(function, len(x))
    with np.errstate(all="ignore"):
        expected = np.where(x > 0, np.log(np.exp(x)), np.tanh(np.exp(x)))
    np.testing.assert_allclose(evaluate(x), expected, rtol=1e-5, atol=1e-6)


def test_other_powers_and_types_are_left_alone():
    x = tirx.Var("x", "float32")
    odd = tirx.pow(x, tirx.const(0.3, "float32"))
    double = tirx.exp(tirx.Var("d", "float64"))
    assert vectorize_math(odd).same_as(odd)
    assert vectorize_math(double).same_as(double)


EVALUATE_EXP = compiled(te.exp, LANES)


@settings(max_examples=200, deadline=None)
@given(value=st.floats(width=32, allow_nan=True, allow_infinity=True))
def test_exp_of_any_float(value):
    x = np.full(LANES, value, "float32")
    with np.errstate(over="ignore"):
        expected = np.exp(x.astype("float64")).astype("float32")
    np.testing.assert_allclose(EVALUATE_EXP(x), expected, rtol=2.4e-7, atol=2e-45)


def in_one_vector(target):
    """Return a function of a sigmoid in vectors, with its names as they are, and its target."""
    x = te.placeholder((LANES,), "float32", name="x")
    func = te.create_prim_func([x, te.compute((LANES,), lambda i: te.sigmoid(x[i]), name="y")])
    sch = tvm.s_tir.Schedule(func)
    sch.vectorize(sch.get_loops(sch.get_sblock("y"))[0])
    mod = lower_blocks(tvm.IRModule({"main": vectorize_math(sch.mod["main"])}))
    return tirx.transform.VectorizeLoop(True)(mod)["main"], tvm.target.Target(target)


@pytest.mark.parametrize("core", ["zen4", "haswell", "cortex-a72"])
def test_opaque_names_leave_no_trace_in_machine_code(core):
    func, target = in_one_vector(dict(Core.named(core).target_config(1)))
    names = collect(func.body, tirx.Let)
    assert names
    hidden = func.with_body(opaque_names(func.body))
    values = [let.value for let in collect(hidden.body, tirx.Let)]
    assert len(values) == len(names)
    assert all(value.op.name == "tirx.call_llvm_intrin" for value in values)
    plain, opaque = (
        tvm.compile(tvm.IRModule({"main": each}), target).mod.inspect_source("asm")
        for each in (func, hidden)
    )
    assert "powi" not in opaque
    assert instructions(opaque) == instructions(plain)


def instructions(assembly):
    """Return the instructions of all functions, without their labels and directives."""
    return re.findall(r"^\t[^.].*$", assembly, re.MULTILINE)


def test_names_of_scalars_are_left_alone():
    x = tirx.Var("x", "float32")
    statement = tirx.Evaluate(tirx.Let(x, tirx.const(2.0, "float32") + x, x))
    assert opaque_names(statement).same_as(statement)


@pytest.mark.parametrize("function", ["nearbyint", "sqrt"])
@pytest.mark.parametrize("beside_lanes", [True, False])
def test_calls_that_all_lanes_share(function, beside_lanes):
    """A factor that is such a call of a quotient by a constant compiles."""
    x = te.placeholder((64,), "float32", name="x")
    y = te.placeholder((64, LANES), "float32", name="y")
    call = getattr(te, function)

    def value(i, j):
        shared = call((x[i] + 1.0) / 3.3) * 2.5
        return y[i, j] * shared if beside_lanes else shared

    func = te.create_prim_func([x, y, te.compute((64, LANES), value, name="z")])
    sch = tvm.s_tir.Schedule(func)
    sch.vectorize(sch.get_loops(sch.get_sblock("z"))[-1])
    rng = np.random.default_rng(5)
    x, y = (rng.uniform(0, 9, shape).astype("float32") for shape in ((64,), (64, LANES)))
    of_x = (np.rint if function == "nearbyint" else np.sqrt)((x + 1) / np.float32(3.3))[:, None]
    # With blocks, as the default rule has them, and without, as algorithms do.
    for body in (sch.mod["main"], *lower_blocks(sch.mod).functions.values()):
        rewritten = tvm.IRModule({"main": vectorize_math(body, divides=False)})
        out = tvm.runtime.tensor(np.zeros_like(y))
        library = tvm.compile(rewritten, "llvm")
        library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), out)
        expected = (y if beside_lanes else 1) * of_x * 2.5 + 0 * y
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def test_roundings_of_roundings_behind_a_condition():
    """Padded copies of a quantized image: names inside calls of calls compile, and stay guarded."""
    x = te.placeholder((9, LANES), "float32", name="x")

    def value(i, j):
        rounded = te.nearbyint(te.nearbyint((x[i - 1, j] + 1.0) / 3.3) * 1.7)
        other = te.if_then_else(i == 9, 5.0, te.nearbyint(x[i - 1, j] / 2.7))
        return te.if_then_else(te.all(i >= 1, i < 5), rounded, te.if_then_else(i < 1, 7.0, other))

    func = te.create_prim_func([x, te.compute((10, LANES), value, name="y")])
    sch = tvm.s_tir.Schedule(func)
    sch.vectorize(sch.get_loops(sch.get_sblock("y"))[-1])
    given = np.random.default_rng(5).uniform(0, 90, (9, LANES)).astype("float32")
    expected = np.full((10, LANES), 7, "float32")
    expected[1:5] = np.rint(np.rint((given[:4] + 1) / np.float32(3.3)) * np.float32(1.7))
    expected[5:9] = np.rint(given[4:8] / np.float32(2.7))
    expected[9] = 5
    for body in (sch.mod["main"], *lower_blocks(sch.mod).functions.values()):
        rewritten = tvm.IRModule({"main": vectorize_math(body, divides=False)})
        out = tvm.runtime.tensor(np.zeros_like(expected))
        tvm.compile(rewritten, "llvm")["main"](tvm.runtime.tensor(given), out)
        np.testing.assert_array_equal(out.numpy(), expected)
