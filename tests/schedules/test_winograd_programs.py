"""Straight-line programs: exact, as short as expected, and compiled to as many instructions."""

import re
from fractions import Fraction

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_blislike.hardware import Core
from tvm_blislike.schedules.conv2d_winograd.transforms import (
    ACCURATE_POINTS,
    flat_program,
    matrices,
    program,
)

COEFFICIENTS = st.sampled_from([Fraction(c) for c in (0, 0, 1, -1, 2, -2, "1/2", 3, "-5/4")])
SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6))


def exact_product(matrix, inputs):
    return [sum(c * x for c, x in zip(row, inputs, strict=True)) for row in matrix]


def transposed(rows):
    return list(zip(*rows, strict=True))


@st.composite
def matrix_and_inputs(draw):
    rows, columns = draw(SIZES)
    row = st.lists(COEFFICIENTS, min_size=columns, max_size=columns)
    numbers = st.fractions(min_value=-9, max_value=9, max_denominator=7)
    return (
        draw(st.lists(row, min_size=rows, max_size=rows)),
        draw(st.lists(numbers, min_size=columns, max_size=columns)),
    )


@given(matrix_and_inputs())
@settings(max_examples=300, deadline=None)
def test_any_matrix_exactly(case):
    matrix, inputs = case
    p = program(matrix)
    assert p.apply(inputs, Fraction) == exact_product(matrix, inputs)
    # Sharing never costs more than one row after the other would.
    terms = [[c for c in row if c] for row in matrix]
    naive = sum(len(row) - (1 if 1 in map(abs, row) else 0) for row in terms)
    assert p.additions + p.multiplications <= naive + sum(row == [-1] for row in terms)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=30, deadline=None)
def test_flat_is_the_nested_transform(m, r, data):
    points = data.draw(
        st.lists(
            st.fractions(min_value=-3, max_value=3, max_denominator=4),
            min_size=m + r - 2,
            max_size=m + r - 2,
            unique=True,
        )
    )
    t = matrices(m, r, points)
    for rows, columns in ((t.bt, t.bt), (t.at, t.bt), (t.g, t.at)):
        patch = [
            [Fraction(7 * i + 3 * j, 5) for j in range(len(columns[0]))]
            for i in range(len(rows[0]))
        ]
        half = [exact_product(columns, row) for row in patch]
        whole = transposed([exact_product(rows, column) for column in transposed(half)])
        flat = flat_program(rows, columns).apply([x for row in patch for x in row], Fraction)
        assert flat == [x for row in whole for x in row]


class Term:
    """Records how an expression is put together: every operation, and who uses its result."""

    def __init__(self, record, kind, *operands):
        self.record, self.kind, self.users = record, kind, []
        for operand in operands:
            operand.users.append(kind)
        record.append(self)

    def __add__(self, other):
        return Term(self.record, "add", self, other)

    def __sub__(self, other):
        return Term(self.record, "add", self, other)

    def __rmul__(self, constant):
        assert abs(constant) != 1
        return Term(self.record, "multiply", self)


@pytest.mark.parametrize("name", ["bt", "at", "g"])
@pytest.mark.parametrize("m, r", [(2, 3), (4, 3), (6, 3), (4, 5)])
def test_counts_are_what_apply_does(m, r, name):
    p = program(getattr(matrices(m, r), name))
    record = []
    p.apply([Term(record, "input") for _ in range(p.inputs)])
    products = [term for term in record if term.kind == "multiply"]
    assert sum(term.kind == "add" for term in record) == p.additions
    # All products but those counted are operands of one addition, which absorbs them.
    assert sum(term.users != ["add"] for term in products) <= p.multiplications
    assert p.multiplications <= len(products)


# Additions (fused or not) of one pass. The thesis's simplification counts 168 for the 12 passes of
# the input transform of F(4, 3), 100 for the 10 passes of its output, and so on (notes, section
# 3.4): 14 and 10.
PASSES = {
    (2, 3): (4, 4),
    (3, 3): (9, 7),
    (4, 3): (12, 10),
    (6, 3): (24, 20),
    (2, 5): (12, 8),
    (4, 5): (24, 16),
}
NOTES = {
    (2, 3): (32, 24),
    (3, 3): (90, 56),
    (4, 3): (168, 100),
    (2, 5): (168, 64),
    (4, 5): (544, 192),
}


@pytest.mark.parametrize("m, r", PASSES)
def test_operations_of_a_pass(m, r):
    t = matrices(m, r)
    bt, at = program(t.bt), program(t.at)
    assert (bt.additions, at.additions) == PASSES[m, r]
    assert bt.multiplications == at.multiplications == 0
    if (m, r) in NOTES:
        assert 2 * t.n * bt.additions <= NOTES[m, r][0]
        assert (t.n + t.m) * at.additions <= NOTES[m, r][1]


def test_operations_of_the_accurate_points():
    t = matrices(4, 3, ACCURATE_POINTS[6])
    bt, at = program(t.bt), program(t.at)
    assert (bt.additions, bt.multiplications) == (12, 0)
    assert (at.additions, at.multiplications) == (10, 2)


# After the thesis: 269, 137 and 81 additions for F(4, 3), 916 for the input of F(4, 5).
@pytest.mark.parametrize(
    "m, r, name, most",
    [(4, 3, "bt", 144), (4, 3, "at", 100), (4, 3, "g", 81), (6, 3, "bt", 468), (6, 3, "at", 326)],
)
def test_operations_of_a_flat_transform(m, r, name, most):
    matrix = getattr(matrices(m, r), name)
    assert flat_program(matrix, matrix).additions <= most


def test_flat_transform_that_would_take_too_long():
    t = matrices(8, 3)
    with pytest.raises(ValueError, match=r"100 inputs .*\(at most 64\): use a smaller F\(m, r\)"):
        flat_program(t.bt, t.bt)


def test_a_shared_value_is_one_object():
    first, second = program([[1, 2, 0], [1, 2, 0]]).apply([np.ones(3)] * 3)
    assert first is second
    inputs = [np.ones(2), np.ones(2)]
    assert program([[1, 0], [0, 0]]).apply(inputs)[0] is inputs[0]


def test_negations_fold_into_subtractions():
    for matrix in ([[-1, 1]], [[-1, 2]], [[-2, -1]], [[3, 0, -1]]):
        p = program(matrix)
        assert (p.additions, p.multiplications) == (1, 0)
    p = program([[-1, 0]])
    assert (p.additions, p.multiplications) == (0, 1)
    # The first row and its half: the shared sum is the row itself, not its negative.
    p = program([[-1, 2], [Fraction(1, 2), -1]])
    assert (p.additions, p.multiplications) == (1, 1)
    p = program([[-1, 2, 0], [1, -2, 5]])
    assert (p.additions, p.multiplications) == (2, 0)


def test_rows_that_start_from_the_same_product():
    p = program([[2, 3], [2, -3], [0, 2]])
    assert (p.additions, p.multiplications) == (2, 2)


def test_bad_input():
    with pytest.raises(ValueError, match="expected 6 inputs, got 4"):
        program(matrices(4, 3).bt).apply([1, 2, 3, 4])
    for matrix in ([], [[1, 2], [3]]):
        with pytest.raises(ValueError, match="at least one row, and rows of one length"):
            program(matrix)


@pytest.mark.parametrize("name", ["bt", "at"])
@pytest.mark.parametrize("m, r, points", [(4, 3, None), (6, 3, None), (4, 3, ACCURATE_POINTS[6])])
def test_every_operation_is_one_instruction(m, r, points, name):
    """LLVM contracts every product with its addition, also the two of E + 2 O and E - 2 O."""
    p = program(getattr(matrices(m, r, points), name))
    data = te.placeholder((p.inputs, 16), "float32", name="data")

    def value(row, lane):
        inputs = [data[i, lane] for i in range(p.inputs)]
        results = p.apply(inputs, lambda c: tirx.const(float(c), "float32"))
        chosen = results[0]
        for i, result in enumerate(results[1:], 1):
            chosen = tirx.Select(row == i, result, chosen)
        return chosen

    func = te.create_prim_func([data, te.compute((len(p.outputs), 16), value, name="y")])
    sch = tvm.s_tir.Schedule(func)
    rows, lanes = sch.get_loops(sch.get_sblock("y"))
    sch.unroll(rows)
    sch.vectorize(lanes)
    target = tvm.target.Target(Core.named("skylake-avx512").target_config())
    assembly = tvm.compile(sch.mod, target).mod.inspect_source("asm")
    arithmetic = re.findall(r"\bv(?:fn?m(?:add|sub)\d+|add|sub|mul)ps\b", assembly)
    assert len(arithmetic) == p.additions + p.multiplications
