"""One model compiled, run and compared: what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import engines
import numpy as np
import onnx
from graphs import Tensor

import tvm_blislike
from tvm_blislike import Constraints, Core, native_core
from tvm_blislike.errors import (
    BlislikeError,
    InputError,
    ModelError,
    UnsupportedOperatorError,
)
from tvm_blislike.records.book import RecordBook
from tvm_blislike.schedules import all_implementations

AGREES, REFUSED, WRONG, INTERNAL = "agrees", "refused", "wrong", "internal error"
CRASH, HANG = "crash", "hang"
OWN = "fault of the fuzzer"
FAULTS = (WRONG, INTERNAL, CRASH, HANG, OWN)
_REFUSALS = (UnsupportedOperatorError, ModelError, InputError)


Values = dict[str, np.ndarray]
Run = Callable[[tvm_blislike.CompiledModel, Values], Values]


@dataclass(frozen=True)
class Verdict:
    """What came of a model, one of the words above, and what there is to say of it."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Way:
    """How a model is compiled.

    Parameters
    ----------
    core : str
        "native", or a core whose code this machine runs.
    only : tuple of str
        Implementations to use wherever they apply.
    threads : int
        Threads to run with.
    """

    core: str = "native"
    only: tuple[str, ...] = ()
    threads: int = 1

    def __str__(self) -> str:
        only = f" only {', '.join(self.only)}" if self.only else ""
        return f"{self.core}{only}, {self.threads} threads"


def way_of(seed: int) -> Way:
    """Return the way of a seed: each instruction set and each implementation takes its turn."""
    rng = np.random.default_rng([seed, 1])
    cores = ["native", "native", "haswell", "skylake-avx512"]
    names = sorted(implementation.name for implementation in all_implementations())
    only = (str(rng.choice(names)),) if rng.random() < 0.5 else ()
    return Way(str(rng.choice([c for c in cores if _runs_here(c)])), only, int(rng.integers(1, 3)))


def verdict(
    model: onnx.ModelProto,
    inputs: dict[str, np.ndarray],
    outputs: Sequence[Tensor],
    tolerances: Sequence[float],
    way: Way = Way(),
    run: Run = tvm_blislike.CompiledModel.run,
) -> Verdict:
    """Compile and run a model; compare it with the values that its outputs should have."""
    core = native_core() if way.core == "native" else Core.named(way.core)
    try:
        compiled = tvm_blislike.compile(
            model, core, threads=way.threads, constraints=Constraints(only=way.only),
            records=RecordBook(),
        )  # fmt: skip
        found = list(run(compiled, inputs).values())
    except _REFUSALS as error:
        return _refusal(model, error)
    except Exception as error:
        return Verdict(INTERNAL, f"{type(error).__name__}: {str(error).strip()[-600:]}")
    expected = [t.value for t in outputs]
    reasons = _differences(outputs, expected, found, tolerances)
    if reasons and not _reference_agrees(model, inputs, outputs, found, tolerances):
        return Verdict(WRONG, "; ".join(reasons))
    return Verdict(AGREES, "against ONNX Runtime: " + "; ".join(reasons) if reasons else "")


def _refusal(model: onnx.ModelProto, error: BlislikeError) -> Verdict:
    """A refusal is one only when it names what it refuses."""
    names = {node.op_type for node in model.graph.node} | {v.name for v in model.graph.input}
    if any(name.lower() in error.message.lower() for name in names):
        return Verdict(REFUSED, error.message)
    return Verdict(INTERNAL, f"a refusal that names nothing: {error}")


def _differences(
    outputs: Sequence[Tensor],
    expected: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
    tolerances: Sequence[float],
) -> list[str]:
    parts = zip(outputs, expected, found, tolerances, strict=True)
    return [f"{t.name}: {text}" for t, e, f, limit in parts if (text := difference(e, f, limit))]


def difference(expected: np.ndarray, found: np.ndarray, limit: float) -> str:
    """Say how an output differs from what it should be; nothing when it is within the limit."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        have = f"{found.dtype}{list(found.shape)}"
        return f"{have} instead of {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        count = int((expected != found).sum())
        return f"{count} of {expected.size} elements differ" if count else ""
    with np.errstate(invalid="ignore"):
        errors = np.abs(expected.astype("f8") - found.astype("f8"))
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    errors = np.where(same, 0.0, errors)
    worst = float(np.nan_to_num(errors, nan=np.inf).max(initial=0.0))
    if worst <= limit:
        return ""
    largest = float(np.abs(expected).max(initial=0.0))
    return f"error {worst:.3g}, allowed {limit:.3g}, largest value {largest:.3g}"


def _reference_agrees(
    model: onnx.ModelProto,
    inputs: dict[str, np.ndarray],
    outputs: Sequence[Tensor],
    found: Sequence[np.ndarray],
    tolerances: Sequence[float],
) -> bool:
    """Whether ONNX Runtime is the odd one out."""
    try:
        reference = engines.by_reference(model, inputs)
    except Exception:  # it has gaps of its own
        return False
    return not _differences(outputs, reference, found, tolerances)


def _runs_here(core: str) -> bool:
    from tvm_blislike.runtime.runnable import require_runnable

    if core == "native":
        return True
    try:
        require_runnable(Core.named(core).target_config())
    except BlislikeError:
        return False
    return True
