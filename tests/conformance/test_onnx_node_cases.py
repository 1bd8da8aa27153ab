"""Every public ONNX case either agrees or is refused as `refusals.toml` says, and why.

Of cases of the same operators as many as `_MOST`, with more effort more.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from effort import spread

from conformance import plain_tvm
from conformance.cases import Case, collect
from conformance.expected import Table
from conformance.outcomes import PASSES, REFUSED, WRONG, compare
from conformance.processes import Runner
from tvm_blislike.hardware import native_core

CASES = collect()
TABLE = Table()
# Of those with weights and settings at run time, likewise of those with constants, and of those
# whose operators are functions, which are written out.
_MOST = 3


def _tried() -> list[str]:
    alike = defaultdict(list)
    for name, case in CASES.items():
        alike[case.operators, "_expanded" in name, name.endswith("_constant")].append(name)
    return sorted(name for names in alike.values() for name in spread(names, _MOST))


_CORE = native_core()
WIDENED = [name for name, case in CASES.items() if TABLE.is_wider_needed(case, _CORE)]


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """A process for the cases, so that a crash or a hang is the case's alone."""
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("name", _tried())
def test_case(name: str, runner: Runner) -> None:
    case, refusals = CASES[name], TABLE.refusals(CASES[name])
    assert len(refusals) < 2, "two entries of the table"
    outcome = runner.outcome(TABLE.widened(case))
    if not refusals:
        assert outcome.kind == PASSES, f"{outcome.kind}: {outcome.detail}"
        return
    assert outcome.kind == REFUSED, f"{outcome.kind}, though listed: {outcome.detail}"
    assert refusals[0].describes(outcome.detail), outcome.detail
    assert _names(case.model) & set(re.findall(r"\w+", outcome.detail))


def _names(model: onnx.ModelProto) -> set[str]:
    """Return the names of ONNX's operators, and of what goes into a model."""
    values = (*model.graph.input, *model.graph.initializer)
    return {schema.name for schema in onnx.defs.get_all_schemas()} | {v.name for v in values}


@pytest.mark.parametrize("name", WIDENED)
def test_wider_tolerance_is_needed(name: str, runner: Runner) -> None:
    assert runner.outcome(CASES[name]).kind == WRONG


@pytest.mark.parametrize("name", [name for name in CASES if TABLE.is_misread(name)])
def test_importer_still_misreads(name: str) -> None:
    """What the library refuses because TVM would compute something else, without a word."""
    with pytest.raises(AssertionError):
        compare(CASES[name], _run_plain(CASES[name]))


def _run_plain(case: Case) -> list[dict[str, np.ndarray]]:
    return [plain_tvm.run(case.model, inputs) for inputs, _ in case.data_sets]


def test_every_pattern_of_the_table_has_a_case() -> None:
    unused = [pattern for group in TABLE.groups for pattern in group.unused(CASES)]
    assert not unused
    operators = set().union(*(case.operators for case in CASES.values()))
    assert TABLE.without_converter <= operators


def test_all_node_cases_are_here() -> None:
    assert len(CASES) > 2600
    for case in CASES.values():
        onnx.checker.check_model(case.model)
