"""Opening a kept model, or compiling and keeping it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

from tvm_blislike import progress
from tvm_blislike.cache import entry, store
from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import BlislikeError, ToolchainError
from tvm_blislike.model.report import Report
from tvm_blislike.runtime.compiled import CompiledModel
from tvm_blislike.runtime.runnable import extensions

_log = logging.getLogger("tvm_blislike")


def kept_or_compiled(
    key: str, model: Path | None, compile: Callable[[], CompiledModel]
) -> CompiledModel:
    """Return the kept model of a key; where there is none, compile it and keep it.

    Parameters
    ----------
    key : str
        See `key.key_of`.
    model : Path or None
        The model's file, if it is in one.
    compile : callable
        Compiles it; its errors come through.
    """
    return _opened(key, model, compile) or _compiled(key, model, compile)


def kept_report(key: str, model: Path | None) -> Report | None:
    """Return the report of the kept model of a key; None where there is none."""
    place = store.find(key)
    if place is None:
        return None
    try:
        return Report.from_json(entry.current(place, model).about.report)
    except Exception as error:  # whoever opens it will drop it
        _log.debug("%s cannot be read: %s", place, error)
        return None


def _opened(
    key: str, model: Path | None, compile: Callable[[], CompiledModel]
) -> CompiledModel | None:
    """Return the kept model; None where there is none, or it is damaged or of other data."""
    place = store.find(key)
    if place is None:
        return None
    try:
        module, weights, told = entry.read(place, model)
        about, report = told.about, Report.from_json(told.about.report)
    except Exception as error:  # whatever a damaged file leads to
        _log.debug("%s is dropped: %s", place, error)
        store.drop(place)
        return None
    specs, others = (about.inputs, about.outputs), {"variants": about.variants, "weights": weights}
    return CompiledModel(module, *specs, about.target, report, again=compile, **others)


def _compiled(key: str, model: Path | None, compile: Callable[[], CompiledModel]) -> CompiledModel:
    """Compile a model and keep it; where it cannot be kept, the log says why."""
    with compiler_lock():
        # Under the lock: what is recorded is of this process, not of this thread.
        with warnings.catch_warnings(record=True) as caught:
            compiled = compile()
        for each in caught:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        # Those of threads and CPUs are of this moment, not of the model.
        texts = [str(each.message) for each in caught if each.category is not RuntimeWarning]
        progress.begin("link")
        try:
            place, beside = (
                ("", {}) if model is None else (model.absolute(), entry.data_beside(model))
            )
            needed = extensions(compiled.target)
            told = entry.Told(compiled.about, str(place), beside, texts, needed)
            place = store.put(key, lambda folder: entry.write(*compiled.running, told, folder))
            if place is not None:
                compiled.run_linked(entry.kernels_of(place))
        except ToolchainError as error:
            _log.debug("compiled models are not kept: %s", error.message)
        except (BlislikeError, OSError, ValueError) as error:
            _log.warning("the compiled model cannot be kept: %s", error)
    return compiled
