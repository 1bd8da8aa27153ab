"""Pairs of narrowed vectors as one permutation: the same bytes, and only of true neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.schedules.lowering import narrowing
from tvm_blislike.schedules.lowering.llvm_functions import with_sources

LANES, VECTORS = 16, 4
NATIVE = native_core()
IN_PAIRS = [(0, 0), (0, 1), (0, 2), (0, 3)]


def target_of(core: Core) -> tvm.target.Target:
    return tvm.target.Target(core.target_config(1))


def narrowed(
    places: list[tuple[int, int]], dtype: str = "uint8", added: tuple[int, ...] = ()
) -> tirx.PrimFunc:
    """Return a function (words, bytes) of two rows that stores the vectors at places, in order.

    Parameters
    ----------
    places : list of tuple of int
        Row and vector.
    added : tuple of int
        What is added to the bytes of each vector.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        words = T.match_buffer(T.arg("words", T.handle()), (2, LANES * VECTORS), "int32")
        result = T.match_buffer(T.arg("result", T.handle()), (2, LANES * VECTORS), dtype)
        for (row, vector), more in zip(places, added or [0] * len(places), strict=True):
            lanes = T.ramp(LANES * vector, 1, LANES)
            value = tirx.Cast(f"{dtype}x{LANES}", words[row, lanes] ^ T.broadcast(3, LANES))
            value = value + T.broadcast(tirx.const(more, dtype), LANES) if more else value
            T.buffer_store(result, value, [row, lanes])
    return builder.get().with_attr({"global_symbol": "main", "tirx.noalias": True})


def changed(func: tirx.PrimFunc, core: str = "emeraldrapids") -> tirx.PrimFunc:
    return narrowing.by_permutation(func.with_attr("target", target_of(Core.named(core))))


def pairs(func: tirx.PrimFunc) -> int:
    return str(func).count(narrowing.SYMBOL)


@pytest.mark.parametrize("core", ["icelake-client", "icelake-server", "zen4", "zen5"])
def test_processors_imply_it(core: str) -> None:
    assert pairs(changed(narrowed(IN_PAIRS), core)) == 2


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("added", [(), (1, 1, 1, 1), (5, 5, 1, 1)])
def test_neighbours_are_joined(dtype: str, added: tuple[int, ...]) -> None:
    func = narrowed(IN_PAIRS, dtype, added)
    joined = changed(func)
    assert pairs(joined) == 2
    target = target_of(Core.named("emeraldrapids"))
    module = tvm.IRModule({"main": with_sources(joined)})
    assembly = tvm.compile(module, target).mod.inspect_source("asm")
    assert "2b" in assembly and "vperm" in assembly and "vpmovdb" not in assembly


@pytest.mark.skipif("vbmi" not in NATIVE.features, reason="this machine lacks the permutation")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("added", [(), (1, 1, 1, 1), (5, 5, 1, 1), (1, 0, 0, 2)])
@pytest.mark.parametrize("places", [IN_PAIRS, IN_PAIRS[1:], [(0, 0), (1, 0), (1, 1), (1, 3)]])
def test_the_bytes_are_the_same(
    dtype: str, added: tuple[int, ...], places: list[tuple[int, int]]
) -> None:
    func = narrowed(places, dtype, added[: len(places)])
    rng = np.random.default_rng(7)
    words = rng.integers(-(2**31), 2**31, (2, LANES * VECTORS)).astype("int32")
    results = []
    for each in (func, with_sources(changed(func))):
        result = tvm.runtime.tensor(np.zeros(words.shape, dtype))
        module = tvm.IRModule({"main": each.without_attr("target") if each is func else each})
        tvm.compile(module, target_of(NATIVE))["main"](tvm.runtime.tensor(words), result)
        results.append(result.numpy())
    np.testing.assert_array_equal(*results)
    assert results[0].any()


@pytest.mark.parametrize(
    ("places", "added"),
    [
        ([(0, 0)], ()),
        ([(0, 0), (0, 2)], ()),
        ([(0, 1), (0, 0)], ()),
        ([(0, 0), (1, 1)], ()),
        ([(0, 3), (1, 0)], ()),
        ([(0, 0), (0, 1)], (0, 1)),
    ],
)
def test_others_stay(places: list[tuple[int, int]], added: tuple[int, ...]) -> None:
    assert pairs(changed(narrowed(places, added=added))) == 0


def test_the_target_is_the_current_one_where_a_function_names_none() -> None:
    with target_of(Core.named("emeraldrapids")):
        assert pairs(narrowing.by_permutation(narrowed(IN_PAIRS))) == 2
    with target_of(Core.named("skylake-avx512")):
        assert pairs(narrowing.by_permutation(narrowed(IN_PAIRS))) == 0
    assert pairs(narrowing.by_permutation(narrowed(IN_PAIRS))) == 0


@pytest.mark.parametrize("core", ["skylake-avx512", "haswell", "cortex-a76"])
def test_cores_without_the_permutation(core: str) -> None:
    func = narrowed(IN_PAIRS)
    assert pairs(changed(func, core)) == 0
