"""`tvm_blislike.compile`: from a model and a target to a CompiledModel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tvm_blislike import progress
from tvm_blislike.collector import resting_collector
from tvm_blislike.errors import (
    BlislikeError,
    SizesMeetError,
    SizesWarning,
    TargetError,
    UnsupportedOperatorError,
    suggest,
    warn_once,
)
from tvm_blislike.export.link import is_foreign
from tvm_blislike.runtime.compiled import CompiledModel
from tvm_blislike.runtime.threads import default_threads, use_threads

if TYPE_CHECKING:
    import onnx
    import torch
    import tvm

    from tvm_blislike.cache.key import Content
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.choose.offers import Predictor
    from tvm_blislike.choose.strategy import Override, Strategy
    from tvm_blislike.hardware import Core
    from tvm_blislike.model.report import Report
    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.onnx import frontend
    from tvm_blislike.onnx.open_sizes import Shapes, Sizes
    from tvm_blislike.records.book import RecordBook

Result = TypeVar("Result")


@resting_collector()
def compile(
    model: str | os.PathLike[str] | onnx.ModelProto | torch.export.ExportedProgram,
    target: str | os.PathLike[str] | Core = "native",
    shapes: Shapes | None = None,
    threads: int | None = None,
    override: Override | None = None,
    constraints: Constraints | None = None,
    records: str | os.PathLike[str] | RecordBook | None = None,
    learned: str | os.PathLike[str] | Predictor | None = None,
    weights: str | None = None,
    precision: str | None = None,
    cache: bool = True,
) -> CompiledModel:
    """Compile a model of ONNX or PyTorch, or open what was kept of compiling the same before.

    Parameters
    ----------
    model : path, onnx.ModelProto or torch.export.ExportedProgram
        The model. A program's inputs and outputs have the names and the order of its ONNX export.
    target : str, path or Core
        "native", the name of a core (see `tvm-blislike targets`), or a TOML file.
    shapes : mapping of str to sequence of int, optional
        Shapes of the inputs that the model leaves symbolic, or the values of such sizes by their
        own names: `{"x": (1, 3, 224, 224)}`, `{"batch": 1}`. A size may stay open: one model then
        takes all the values of `range(1, 9)`, or of `(64, 128)` in its place. All of them share
        weights, and kernels where they can.
    threads : int, optional
        Threads to schedule for and to run with; by default one per usable physical core, for
        another architecture one per core of the target.
    override : callable, optional
        Own strategy: gets a workload, returns the config to use or None for the usual choice.
    constraints : Constraints, optional
        Largest error and workspace, implementations to use or to leave out, pinned layers.
    records : path or RecordBook, optional
        What `tune` measured: records of the same core, threads and workload overrule the model.
        By default the user's own file, if there is one; "none" or `RecordBook()` stands for none.
        A folder or a URL is a store that machines share: see `tvm_blislike.records.store`.
    learned : path or Predictor, optional
        What `records train` wrote: it corrects the cost model.
    weights : str, optional
        "bf16", "fp16", "int8", "fp8" (e4m3) or "fp8_e5m2": weights of layers that memory bounds are
        rounded to it at compile time, and become fp32 again as they are loaded. Takes the place of
        `constraints.weights`.
    precision : str, optional
        "fp32", "bf16", "fp16" or "fast": what layers of fp32 may be computed in, see
        `Constraints.precision`, whose place it takes.
    cache : bool
        Whether a model in a file, or a program, may come from the user's folder of compiled models,
        and is kept there; see `tvm_blislike.cache`. A kept model runs and explains itself as any;
        before what needs its code, such as `export`, it is compiled again. One with an override, or
        that is given as a ModelProto, is never kept.

    Returns
    -------
    CompiledModel
        Ready to run here when `target` is native.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        See `tvm_blislike.onnx.frontend.load`, and `tvm_blislike.onnx.exported.to_onnx`; also when
        `learned` cannot be read.
    TargetError
        When `target` is unknown.
    ValueError
        When `threads` is less than 1.
    ChoiceError
        When an override or a pin cannot compute its workload.
    UsageError
        When `learned` is of another core or number of threads, or weights cannot be stored so.
    ToolchainError
        When `learned` needs xgboost, or a program onnxscript, which is not installed.
    """
    asked = {"weights": weights, "precision": precision}
    if any(asked.values()):
        from tvm_blislike.choose.constraints import Constraints

        given = {name: value for name, value in asked.items() if value}
        constraints = replace(constraints or Constraints(), **given)
    core = resolve_core(target)
    threads = resolve_threads(core, threads)
    records = _up_to_date(records, core, threads)

    def compile_anew() -> CompiledModel:
        strategy = resolve_strategy(core, threads, override, constraints, records, learned)
        return compile_with(strategy, _as_onnx(model), shapes)

    key = _key(cache, model, core, threads, shapes, override, constraints, records, learned)
    if key is None:
        return compile_anew()
    from tvm_blislike.cache.models import kept_or_compiled

    return kept_or_compiled(key, _file_of(model), compile_anew)


@resting_collector()
def explain(
    model: str | os.PathLike[str] | onnx.ModelProto | torch.export.ExportedProgram,
    target: str | os.PathLike[str] | Core = "native",
    shapes: Shapes | None = None,
    threads: int | None = None,
    override: Override | None = None,
    constraints: Constraints | None = None,
    records: str | os.PathLike[str] | RecordBook | None = None,
    learned: str | os.PathLike[str] | Predictor | None = None,
    cache: bool = True,
) -> Report:
    """Return what would be chosen for each layer of a model, without compiling it.

    The arguments, and the errors raised, are those of `compile`.

    Returns
    -------
    Report
        The same as `compile(...).explain()`; of a kept model what is kept.
    """
    core = resolve_core(target)
    threads = resolve_threads(core, threads)
    records = _up_to_date(records, core, threads)
    key = _key(cache, model, core, threads, shapes, override, constraints, records, learned)
    if key is not None:
        from tvm_blislike.cache.models import kept_report

        kept = kept_report(key, _file_of(model))
        if kept is not None:
            return kept
    from tvm_blislike.pipeline import explain_module

    strategy = resolve_strategy(core, threads, override, constraints, records, learned)
    return built_sizes(strategy, _as_onnx(model), shapes, explain_module)[1]


def _up_to_date(
    records: str | os.PathLike[str] | RecordBook | None, core: Core, threads: int
) -> str | os.PathLike[str] | RecordBook | None:
    """Return the local copy of a store of records; what is none as it is."""
    from tvm_blislike.records.place import default_place, is_store

    if not isinstance(records, str | os.PathLike | None) or not is_store(
        default_place() if records is None else records
    ):
        return records
    from tvm_blislike.records.store import up_to_date

    return up_to_date(records, core, threads)


def _as_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto | torch.export.ExportedProgram,
) -> str | os.PathLike[str] | onnx.ModelProto:
    from tvm_blislike.onnx import exported

    return exported.to_onnx(model) if exported.is_exported(model) else model


def _file_of(model: Any) -> Path | None:
    return Path(model) if isinstance(model, str | os.PathLike) else None


def _content(model: Any) -> Content | None:
    """Return what a model says; None for one that is not kept."""
    from tvm_blislike.cache.key import Content
    from tvm_blislike.onnx import exported

    if isinstance(model, str | os.PathLike):
        return Content.of_file(model)
    digest = exported.digest_of(model) if exported.is_exported(model) else None
    return None if digest is None else Content(digest)


def _key(
    cache: bool,
    model: str | os.PathLike[str] | onnx.ModelProto | torch.export.ExportedProgram,
    core: Core,
    threads: int,
    shapes: Shapes | None,
    override: Override | None,
    constraints: Constraints | None,
    records: str | os.PathLike[str] | RecordBook | None,
    learned: str | os.PathLike[str] | Predictor | None,
) -> str | None:
    """Return the name under which a compiled model is kept; None for one that is not."""
    if not cache or override is not None:
        return None
    from tvm_blislike.cache.key import has_own_ways, key_of
    from tvm_blislike.cache.store import folder

    if not isinstance(learned, str | os.PathLike | None) or folder() is None:
        return None
    if is_foreign(core.target_config()) or has_own_ways():
        return None
    try:
        content = _content(model)
        if content is None:
            return None
        return key_of(content, core, threads, shapes, constraints, records, learned)
    except OSError:  # the compiler says which file is missing, and how
        return None


def resolve_strategy(
    core: Core,
    threads: int | None = None,
    override: Override | None = None,
    constraints: Constraints | None = None,
    records: str | os.PathLike[str] | RecordBook | None = None,
    learned: str | os.PathLike[str] | Predictor | None = None,
) -> Strategy:
    """Return the strategy that the arguments of `compile` mean."""
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.choose.strategy import Strategy
    from tvm_blislike.records.book import RecordBook

    threads = resolve_threads(core, threads)
    book = records if isinstance(records, RecordBook) else RecordBook.open(records, core, threads)
    predictor = resolve_predictor(learned, core, threads)
    return Strategy(core, threads, override, constraints or Constraints(), book, predictor)


def resolve_threads(core: Core, threads: int | None) -> int:
    """Return the threads that are asked for, by default one per core."""
    if threads is not None:
        return threads
    return core.cores if is_foreign(core.target_config()) else default_threads()


def compile_with(
    strategy: Strategy,
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Shapes | None = None,
) -> CompiledModel:
    """Compile an ONNX model as a strategy chooses; all else as for `compile`."""
    from tvm_blislike.model.variant import Variant
    from tvm_blislike.pipeline import compile_functions

    loaded, made = built_sizes(strategy, model, shapes, compile_functions)
    target = strategy.core.target_config(strategy.threads)
    variants = [
        Variant(name, _sized(loaded.inputs, taken), _sized(loaded.outputs, given))
        for name, (taken, given) in made.functions[:-1]
    ]
    return CompiledModel(
        made.executable,
        loaded.inputs,
        loaded.outputs,
        target,
        made.report,
        made.exportable,
        variants=variants,
        weights=made.weights,
    )


def _sized(
    specs: Sequence[TensorSpec], shapes: Sequence[tuple[int | None, ...]]
) -> tuple[TensorSpec, ...]:
    """Return what goes in or out with other sizes, as far as these are known at compile time."""

    def sized(spec: TensorSpec, shape: tuple[int | None, ...]) -> TensorSpec:
        pairs = zip(spec.shape, shape, strict=True)
        return replace(spec, shape=tuple(None if most is None else size for most, size in pairs))

    return tuple(map(sized, specs, shapes))


def built_sizes(
    strategy: Strategy,
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Shapes | None,
    build: Callable[..., Result],
) -> tuple[frontend.LoadedModel, Result]:
    """Return a model, of its largest sizes, and what a compiler makes of a module of all its sizes.

    A module of smaller batches is derived from that of the largest one, by a compiler that is told
    which; one function serves a range of another size, or images of any size; where none of these
    can be, sizes are imported one by one.
    """
    from tvm_blislike.onnx import frontend
    from tvm_blislike.onnx.open_sizes import frozen, sizes_of
    from tvm_blislike.passes.canvas.module import Images
    from tvm_blislike.passes.lengths.module import Lengths

    sizes = sizes_of(model, frozen(shapes))
    largest = sizes.shapes[-1]
    if len(sizes.shapes) == 1:
        return built(strategy, model, largest, build)
    ways: list[dict[str, Any]] = []
    if sizes.batches is not None and sizes.are_few:
        ways.append({"batches": sizes.batches})
    if sizes.images:
        load = partial(_module_of_image, model, sizes)
        ways.append({"images": Images(sizes.images, load)})
    elif sizes.lengths is not None:
        load = partial(_module_of, model, sizes)
        ways.append({"lengths": Lengths(*sizes.lengths, load)})
    reason = ""
    for way in ways:
        try:
            return built(strategy, model, largest, partial(build, **way))
        except SizesMeetError as error:
            reason = f"{next(iter(way))}: {error}"
    sizes.require_few(reason)
    if reason:
        warn_once(
            SizesWarning,
            f"{len(sizes.shapes)} sizes are compiled one by one, each with functions of its own, "
            f"since they cannot share any ({reason}): name fewer sizes where that takes too long",
        )
    return built(strategy, model, largest, build, partial(frontend.load_sizes, model, sizes.shapes))


def _module_of(
    model: str | os.PathLike[str] | onnx.ModelProto, sizes: Sizes, size: int
) -> tvm.IRModule:
    """Return the imported module of one size of a range, or below it."""
    from tvm_blislike.onnx import frontend

    return frontend.load(model, sizes.at(size)).module


def _module_of_image(
    model: str | os.PathLike[str] | onnx.ModelProto, sizes: Sizes, values: Sequence[int]
) -> tvm.IRModule:
    """Return the imported module for one value of each open size of images, or for any other."""
    from tvm_blislike.onnx import frontend

    return frontend.load(model, sizes.of_image(values)).module


@resting_collector()
def built(
    strategy: Strategy,
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None,
    build: Callable[[tvm.IRModule, Strategy], Result],
    load: Callable[[], frontend.LoadedModel] | None = None,
) -> tuple[frontend.LoadedModel, Result]:
    """Return an ONNX model and what a compiler makes of its module; errors as of `compile`.

    `load` imports it otherwise than with these shapes, none of which may be open.
    """
    from tvm_blislike.hardware.cpus import usable_cpus
    from tvm_blislike.onnx import frontend
    from tvm_blislike.onnx.open_sizes import require_settled

    require_settled(shapes)
    target, threads = strategy.core.target_config(strategy.threads), strategy.threads
    # Constants are folded by running kernels: start TVM's pool with all CPUs before that does.
    use_threads(min(threads, len(usable_cpus())) if is_foreign(target) else threads)
    progress.begin("import")
    loaded = load() if load is not None else frontend.load(model, shapes)
    try:
        return loaded, build(loaded.module, strategy)
    except BlislikeError:
        raise
    except Exception as error:
        reason = _why_not(error, model, shapes, loaded, target)
        if reason is None:
            raise
        raise reason from error


def _why_not(
    error: Exception,
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None,
    loaded: frontend.LoadedModel,
    target: Mapping[str, Any],
) -> BlislikeError | None:
    """Return what TVM cannot compile in a model, None when the fault is not known to be TVM's."""
    import tvm

    from tvm_blislike.onnx import frontend
    from tvm_blislike.onnx.blame import find_fault
    from tvm_blislike.onnx.unsupported import describe, why_unknown

    proto, name, inputs = frontend.prepared(model, shapes)
    sizes = {spec.name: spec.shape for spec in inputs}
    fault = find_fault(proto, sizes, tvm.target.Target(dict(target)))
    if fault is not None:
        unknown = why_unknown(proto, fault.node)
        said = f"{type(fault.error).__name__}: {frontend.first_line(fault.error)}"
        return UnsupportedOperatorError(
            f"{describe(fault.node)} of {name} cannot be compiled by TVM: {unknown or said}"
        )
    operators = frontend.operators_of_run_time_shapes(loaded.module)
    if not operators:
        return None
    return UnsupportedOperatorError(
        f"{name} has shapes that are known at run time only, of {', '.join(operators)}; TVM cannot "
        f"compile that: {type(error).__name__}: {frontend.first_line(error)}",
        "export the model so that shapes follow from constants and from the inputs' shapes",
    )


def resolve_predictor(
    learned: str | os.PathLike[str] | Predictor | None, core: Core, threads: int
) -> Predictor | None:
    """Return the predictor that `learned` means.

    Raises
    ------
    InputError
        When the file is missing, or no learned model of this version.
    UsageError
        When it is of another core or number of threads.
    ToolchainError
        Without xgboost.
    """
    if not isinstance(learned, str | os.PathLike):
        return learned
    from tvm_blislike.cost_models.learned import load

    model = load(learned)
    model.facts.require(core, threads)
    return model


def resolve_core(target: str | os.PathLike[str] | Core) -> Core:
    """Return the core that `target` means: its name, LLVM's of it, or a file.

    Raises
    ------
    TargetError
        When it is no known name and no valid TOML file.
    """
    from tvm_blislike.hardware import Core, HardwareError, UnknownCoreError, names
    from tvm_blislike.hardware.recognition import cores_called
    from tvm_blislike.probe.native import native_core

    if isinstance(target, Core):
        return target
    if target == "native":
        return native_core()
    try:
        if Path(target).suffix == ".toml":
            return Core.from_toml(target)
        return Core.named(str(target))
    except UnknownCoreError as error:
        called = [core.name for core in cores_called(str(target))]
        if len(called) == 1:
            return Core.named(called[0])
        hint = suggest(str(target), ["native", *names()])
        hint = f"it may be {' or '.join(called)}" if called else hint
        raise TargetError(f"unknown target {str(target)!r}", hint) from error
    except HardwareError as error:
        raise TargetError(f"target {error}") from error
