"""Straight-line programs for products with a constant matrix: what a Winograd pass computes.

y = M d for a matrix of known rationals is a handful of additions, because the rows of transform
matrices have much in common: those of the points p and -p are E + O and E - O. The program is
found as Winogen finds it (thesis section 6.9: exact arithmetic, common subexpressions, repeat),
with two differences: subexpressions are pairs, taken up to a common factor, as E and O' in
E + 2 O' and E - 2 O'; and a product that feeds an addition is free, since the hardware has
multiply-adds.

A separable transform applies one such program to all rows and another to all columns. The flat
form is one program for the whole n x n patch. It needs as many operations or more (input of
F(4, 3): 144 either way; of F(6, 3): 468 against 384) and no half transformed patch in between.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

from tvm_blislike.schedules.conv2d_winograd.straight_line import Program, Step

Matrix = tuple[tuple[Fraction, ...], ...]
# Value and coefficient of each term of a sum.
_Form = dict[int, Fraction]
# x_i + ratio * x_j.
_Pair = tuple[int, int, Fraction]

# Inputs of the largest flat program, the 8 x 8 patch of F(6, 3). The search for subexpressions
# takes half a second there and grows with the cube of the inputs.
MOST_FLAT_INPUTS = 64


def program(matrix: Sequence[Sequence[Fraction | int]], integral: bool = False) -> Program:
    """Return the program of one 1-D pass y = M d, with common subexpressions eliminated.

    Parameters
    ----------
    matrix : sequence of rows
        M, any shape; zeros cost nothing.
    integral : bool
        M has integers, and the program is to have no other factors.

    Raises
    ------
    ValueError
        When the matrix is empty or its rows differ in length.
    """
    return _program(tuple(tuple(map(Fraction, row)) for row in matrix), integral)


def flat_program(
    rows: Sequence[Sequence[Fraction | int]],
    columns: Sequence[Sequence[Fraction | int]],
    integral: bool = False,
) -> Program:
    """Return the program of the 2-D transform R d C^T as one pass.

    Inputs and outputs are the elements of the patch and of the result, row by row.

    Parameters
    ----------
    rows, columns : sequence of rows
        R, applied along the height, and C, applied along the width.
    integral : bool
        As for `program`.

    Raises
    ------
    ValueError
        When the patch has more than `MOST_FLAT_INPUTS` elements.
    """
    if (size := len(rows[0]) * len(columns[0])) > MOST_FLAT_INPUTS:
        raise ValueError(
            f"a flat transform of {size} inputs takes too long to build (at most "
            f"{MOST_FLAT_INPUTS}): use a smaller F(m, r) or the separable form"
        )
    return program(
        [[Fraction(a) * b for a in row for b in column] for row in rows for column in columns],
        integral,
    )


@functools.cache
def _program(matrix: Matrix, integral: bool) -> Program:
    if not matrix or len({len(row) for row in matrix}) != 1:
        raise ValueError("a matrix needs at least one row, and rows of one length")
    inputs = len(matrix[0])
    forms = [{j: c for j, c in enumerate(row) if c} for row in matrix]
    steps = _Sharing(forms, inputs, integral).run()
    products: dict[tuple[int, Fraction], int] = {}
    for value, factor in _starting_products(forms):
        products[value, factor] = inputs + len(steps)
        steps.append(Step(value, factor))
    outputs = tuple(_emit(form, steps, inputs, products) for form in forms)
    return Program(inputs, tuple(steps), outputs)


class _Sharing:
    """Replaces the sums of two terms that several forms share by new values, most shared first.

    Parameters
    ----------
    forms : list of dict
        Sums, changed in place.
    inputs : int
        Values that exist already.
    integral : bool
        Factors are integers: x_i / 2 + x_j is not computed for 2 x_j + x_i.
    """

    def __init__(self, forms: list[_Form], inputs: int, integral: bool = False):
        self.forms, self.inputs, self.integral = forms, inputs, integral
        self.steps: list[Step] = []
        self._users: dict[_Pair, set[int]] = defaultdict(set)
        # Pairs with the number of their users, most first; a count that has changed since is
        # noticed when the pair comes up.
        self._queue: list[tuple[int, _Pair]] = []
        for number, form in enumerate(forms):
            for i, j in itertools.combinations(form, 2):
                self._enter(_pair(form, i, j), number)

    def run(self) -> list[Step]:
        """Return the steps that define the new values."""
        while self._queue:
            count, pair = heapq.heappop(self._queue)
            users = self._users[pair]
            if len(users) == -count:
                self._replace(pair, sorted(users))
            elif len(users) > 1:
                heapq.heappush(self._queue, (-len(users), pair))
        return self.steps

    def _enter(self, pair: _Pair, number: int) -> None:
        ratio = pair[2]
        if self.integral and 1 not in (abs(ratio.numerator), ratio.denominator):
            return
        users = self._users[pair]
        users.add(number)
        if len(users) > 1:
            heapq.heappush(self._queue, (-len(users), pair))

    def _replace(self, pair: _Pair, users: list[int]) -> None:
        step = _sum(pair, [self.forms[number] for number in users], self.integral)
        new = self.inputs + len(self.steps)
        self.steps.append(step)
        for number in users:
            form = self.forms[number]
            for i, j in itertools.combinations(form, 2):
                if {i, j} & {step.base, step.operand}:
                    self._users[_pair(form, i, j)].discard(number)
            coefficient = _coefficient(step, form)
            del form[step.base], form[step.operand]
            form[new] = coefficient
            for other in [*form][:-1]:
                self._enter(_pair(form, other, new), number)


def _pair(form: _Form, i: int, j: int) -> _Pair:
    i, j = min(i, j), max(i, j)
    return i, j, form[j] / form[i]


def _sum(pair: _Pair, users: list[_Form], integral: bool) -> Step:
    """Return the multiple of x_i + ratio * x_j that most forms can use without a product."""
    i, j, ratio = pair
    candidates = [
        Step(j, ratio, base=i),
        Step(i, 1 / ratio, base=j),
        Step(j, -ratio, base=i, negated=True),
        Step(i, -1 / ratio, base=j, negated=True),
    ]
    allowed = [c for c in candidates if not integral or c.factor.denominator == 1]
    return max(allowed, key=lambda step: _ease(step, users))


def _ease(step: Step, users: list[_Form]) -> tuple[int, int]:
    """Count the forms in which the sum needs no product, and those that just add it.

    A sum can be subtracted from other terms, but alone its negative takes a product.
    """
    coefficients = [_coefficient(step, form) for form in users]
    free = [
        abs(c) == 1 if len(form) > 2 else c == 1
        for c, form in zip(coefficients, users, strict=True)
    ]
    return sum(free), coefficients.count(1)


def _coefficient(step: Step, form: _Form) -> Fraction:
    return -form[step.base] if step.negated else form[step.base]


def _starting_products(forms: list[_Form]) -> list[tuple[int, Fraction]]:
    """Return the products from which the forms without a coefficient of 1 or -1 start."""
    waiting = [
        tuple((value, abs(c) if len(form) > 1 else c) for value, c in form.items())
        for form in forms
        if form and (all(abs(c) != 1 for c in form.values()) or [*form.values()] == [-1])
    ]
    chosen = []
    while waiting:
        uses = Counter(product for form in waiting for product in form)
        chosen.append(max(uses, key=uses.__getitem__))
        waiting = [form for form in waiting if chosen[-1] not in form]
    return chosen


def _emit(
    form: _Form, steps: list[Step], inputs: int, products: dict[tuple[int, Fraction], int]
) -> int | None:
    """Append the steps that add up a form; return the value of the sum."""
    if not form:
        return None
    start = min(form, key=lambda value: _start_cost(form, value, products))
    c, rest = form[start], [(value, c) for value, c in form.items() if value != start]
    if not rest:
        return start if c == 1 else products[start, c]
    total = start if abs(c) == 1 else products[start, abs(c)]
    for number, (value, factor) in enumerate(rest):
        steps.append(Step(value, factor, base=total, negated=number == 0 and c < 0))
        total = inputs + len(steps) - 1
    return total


def _start_cost(form: _Form, value: int, products: dict[tuple[int, Fraction], int]) -> int:
    """Rank the terms a sum may start from: as it is, negated, as a product, as its negative."""
    c = form[value]
    known = abs(c) == 1 or (value, abs(c)) in products
    return (0 if abs(c) == 1 else 2) + (c < 0) if known else 4
