"""`Einsum` as matrix products, which have kernels; TVM's own has none, and no batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_blislike.onnx.rewrites.site import Site


@dataclass(frozen=True)
class _Term:
    """A tensor whose axes have labels."""

    name: str
    labels: str
    sizes: dict[str, int]


def einsum(site: Site) -> Sequence[str]:
    """Write `Einsum`: sums over labels of one operand first, then a product of two at a time."""
    shapes = [site.shape(i) for i in range(len(site.node.input))]
    inputs, output = _labels(site, [len(shape) for shape in shapes])
    terms = [
        _Term(name, labels, dict(zip(labels, shape, strict=True)))
        for name, labels, shape in zip(site.node.input, inputs, shapes, strict=True)
    ]
    terms = _without_stretched(site, terms)
    result = _summed(site, terms[0], _later(terms[1:], output))
    for count, term in enumerate(terms[1:], 2):
        later = _later(terms[count:], output)
        term = _summed(site, term, later + result.labels)
        result = _product(site, _summed(site, result, later + term.labels), term, later)
    return [_transposed(site, _summed(site, result, output), output).name]


def _labels(site: Site, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result, one letter for each axis."""
    equation = site.attribute("equation").replace(" ", "")
    given, arrow, output = equation.partition("->")
    terms = given.split(",")
    if len(terms) != len(ranks):
        site.refuse(f"its equation {equation!r} has {len(terms)} operands of {len(ranks)}")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    most = max((n for n, term in zip(hidden, terms, strict=True) if "..." in term), default=0)
    # Aligned from behind, as in broadcasting; upper-case letters may be the equation's own.
    letters = "".join(chr(0x3B1 + i) for i in range(most))
    inputs = [
        term.replace("...", letters[most - n :]) for term, n in zip(terms, hidden, strict=True)
    ]
    if any(len(set(term)) < len(term) for term in inputs):
        site.refuse(f"its equation {equation!r} takes a diagonal")
    if any(len(term) != rank for term, rank in zip(inputs, ranks, strict=True)):
        site.refuse(f"its equation {equation!r} does not fit operands of ranks {list(ranks)}")
    every = "".join(terms).replace("...", "")
    implied = "".join(sorted(c for c in set(every) if every.count(c) == 1))
    return inputs, output.replace("...", letters) if arrow else letters + implied


def _without_stretched(site: Site, terms: list[_Term]) -> list[_Term]:
    """Drop axes of one element that others stretch."""
    sizes: dict[str, int] = {}
    for term in terms:
        for label, size in term.sizes.items():
            sizes[label] = max(size, sizes.get(label, 1)) if size else 0
    return [
        _kept(site, term, [c for c in term.labels if term.sizes[c] == sizes[c]]) for term in terms
    ]


def _kept(site: Site, term: _Term, labels: Iterable[str]) -> _Term:
    """Return a term without its other axes, which have one element."""
    kept = "".join(labels)
    if kept == term.labels:
        return term
    sizes = {c: term.sizes[c] for c in kept}
    return _Term(site.reshaped(term.name, tuple(sizes.values())), kept, sizes)


def _later(terms: Iterable[_Term], output: str) -> str:
    return "".join(term.labels for term in terms) + output


def _summed(site: Site, term: _Term, needed: str) -> _Term:
    """Sum over what nobody needs."""
    axes = [i for i, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    labels = "".join(c for c in term.labels if c in needed)
    name = site.reduced("ReduceSum", term.name, axes)
    return _Term(name, labels, {c: term.sizes[c] for c in labels})


def _product(site: Site, a: _Term, b: _Term, needed: str) -> _Term:
    """Multiply two terms, and sum over what both have and nobody needs."""
    shared = [c for c in a.labels if c in b.labels]
    batch = [c for c in shared if c in needed]
    inner = [c for c in shared if c not in needed]
    rows = [c for c in a.labels if c not in shared]
    columns = [c for c in b.labels if c not in shared]
    sizes = {**a.sizes, **b.sizes}
    groups = (batch, rows, inner, columns)
    _, m, k, n = (math.prod(sizes[c] for c in group) for group in groups)
    lead = [math.prod(sizes[c] for c in batch)] if batch else []
    left = site.reshaped(_transposed(site, a, [*batch, *rows, *inner]).name, (*lead, m, k))
    right = site.reshaped(_transposed(site, b, [*batch, *inner, *columns]).name, (*lead, k, n))
    labels = "".join([*batch, *rows, *columns])
    shape = tuple(sizes[c] for c in labels)
    return _Term(
        site.reshaped(site.add("MatMul", left, right), shape), labels, {c: sizes[c] for c in labels}
    )


def _transposed(site: Site, term: _Term, labels: Iterable[str]) -> _Term:
    wanted = "".join(labels)
    if wanted == term.labels:
        return term
    order = [term.labels.index(c) for c in wanted]
    return _Term(site.add("Transpose", term.name, perm=order), wanted, term.sizes)
