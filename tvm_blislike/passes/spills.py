"""Count what register blocks keep on the stack: LLVM compiles them inside small nests.

`python -m tvm_blislike.passes.spills` writes the facts of described cores that lack some into the
package, with `--anew` and names those of these cores again: for a changed schedule or list of
micro-kernels. `ensure` writes those of another core or LLVM into the user's cache when a model is
first compiled for it. Both share the work among processes, which answer in JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import tvm
from filelock import FileLock

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import BlislikeError
from tvm_blislike.hardware import Core, names
from tvm_blislike.microkernels import TYPES, spills
from tvm_blislike.microkernels.spills import Found
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.nest import Nest
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.types import Types
from tvm_blislike.operators import workload_of
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.definitions import primfunc
from tvm_blislike.passes.plan import Plan, note_of
from tvm_blislike.passes.schedule import schedule
from tvm_blislike.schedules import all_implementations, get_implementation, user_implementations
from tvm_blislike.side_by_side import code_threads
from tvm_blislike.tvm_seams import bindings, llvm_text
from tvm_blislike.tvm_seams import functions as relax_functions
from tvm_blislike.tvm_seams.executables import code_of
from tvm_blislike.tvm_seams.machine_code import Instruction, count, functions, innermost_loops

# Nests that are compiled together.
_BATCH = 16


def nests_of(core: Core, types: Types) -> list[Nest]:
    """Return what all implementations, users' own included, want compiled for a core."""
    return [nest for each in all_implementations() for nest in _of(each, core, types)]


def _of(implementation: Implementation, core: Core, types: Types) -> Iterable[Nest]:
    """Return the nests of an implementation, which need not have any."""
    nests = getattr(implementation, "nests", None)
    return nests(core, types) if nests else ()


@compiler_lock()
def counted(core: Core, nests: Sequence[Nest]) -> Found:
    """Compile nests and return the stack accesses per multiply-add of their k loops.

    Raises
    ------
    ValueError
        When no loop of a nest has the multiply-adds of its block.
    """
    found: Found = {}
    for start in range(0, len(nests), _BATCH):
        batch = {f"nest_{i}": nest for i, nest in enumerate(nests[start : start + _BATCH])}
        bodies = functions(_assembly(core, batch))
        for name, nest in batch.items():
            loops = (
                loop
                for part in llvm_text.parts_of(name, bodies)
                for loop in innermost_loops(bodies[part])
            )
            accesses = _accesses(nest, loops)
            blocks = found.setdefault(nest.name, {})
            blocks[nest.block] = max(accesses, blocks.get(nest.block, 0.0))
    return found


def _assembly(core: Core, nests: dict[str, Nest]) -> str:
    target = tvm.target.Target(core.target_config(1))
    with target:
        funcs = {name: _primfunc(nest, name) for name, nest in nests.items()}
        scheduled = schedule(tvm.IRModule(funcs), Plan(core, 1))
        return code_of(tir_pipeline.compiled(scheduled, target), "asm") or ""


def _primfunc(nest: Nest, name: str) -> tvm.tirx.PrimFunc:
    """Return the unscheduled PrimFunc of a nest."""
    w, c = nest.workload, nest.config
    implementation = get_implementation(c.implementation)
    data, weights = w.operands.values()
    if w.images:
        data = Layout(c.data_layout).shape(*w.images[0])
    operand = tvm.te.placeholder(weights, w.types.b, name="operand")
    packed = implementation.pack_te(w, c, operand)
    shape, dtype = tuple(int(extent) for extent in packed.shape), str(packed.dtype)
    choice = Choice(w, implementation, c, None, "")
    func = primfunc(choice, note_of(w, c), data, shape, dtype)
    return func.with_attr("global_symbol", name)


def _accesses(nest: Nest, loops: Iterable[list[Instruction]]) -> float:
    """Return the most stack accesses per multiply-add of the loops over k.

    They have the multiply-adds of whole steps; only of one that LLVM has cut into others they may
    have any number beyond a step's. Loops of transforms may have as many, but do not prefetch.
    """
    counts = [(count(loop), any(i.is_prefetch for i in loop)) for loop in loops]
    large = [(c, ahead) for c, ahead in counts if c.fmas >= nest.fmas]
    own = [(c, ahead) for c, ahead in large if c.fmas % nest.fmas == 0] or large
    if not own:
        raise ValueError(f"no k loop of {nest.block} in the nest {nest.name!r}")
    ahead = [c for c, prefetches in own if prefetches]
    return max(c.spills / c.fmas for c in ahead or [c for c, _ in own])


# --- for cores that nobody has asked about ---------------------------------------------------


# Why the facts of a core are not known.
_unknown: dict[tuple[Core, Types], str] = {}


def known(core: Core) -> tvm.transform.Pass:
    """Return a pass that leaves a module as it is, and has the facts known that it needs."""

    @tvm.transform.module_pass(opt_level=0, name="blislike.CountSpills")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        values = (binding.value for _, func in relax_functions(mod) for binding in bindings(func))
        calls = (value for value in values if isinstance(value, tvm.relax.Call))
        for types in {w.types for w in map(workload_of, calls) if w is not None}:
            ensure(core, types)
        return mod

    return run


def notes(core: Core) -> list[str]:
    """Return what a report says where a cautious rule stands in for facts."""
    return [
        f"register spills of {types} could not be counted, a rule stands in: {why}"
        for (about, types), why in _unknown.items()
        if about == core
    ]


@functools.cache
def ensure(core: Core, types: Types) -> None:
    """Have the facts of a core known, compiling at need: some seconds, once per user.

    Blocks of which all described processors of the instruction set say the same are not compiled.
    What is shipped lacks nothing but what users' implementations want, so that their nests need not
    be built to see it: that takes 0.2 s.
    """
    if spills.is_shipped(core, types) and not user_implementations():
        return
    if not _missing(core, types):
        return
    path = spills.cache_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            # Another process may have been faster.
            spills.forget()
            agreed, disputed = _agreed(_missing(core, types), spills.alike(core, types))
            if agreed or disputed:
                found = merged([agreed, _in_parallel(core, types, disputed)])
                spills.keep(path, core, types, spills.found_for(core, types) | found)
    except (OSError, ValueError, BlislikeError) as error:
        _unknown[core, types] = str(error)


def _missing(core: Core, types: Types) -> list[Nest]:
    known = spills.found_for(core, types)
    return [nest for nest in nests_of(core, types) if nest.name not in known]


def _agreed(nests: Sequence[Nest], others: Sequence[Found]) -> tuple[Found, list[Nest]]:
    """Return what others agree upon, and the nests about which they do not, or say nothing."""
    agreed: Found = {}
    disputed = []
    for nest in nests:
        said = [o[nest.name].get(nest.block, 0.0) for o in others if nest.name in o]
        if len({accesses <= spills.MOST_ACCESSES for accesses in said}) == 1:
            agreed.setdefault(nest.name, {})[nest.block] = max(said)
        else:
            disputed.append(nest)
    return agreed, disputed


def merged(parts: Iterable[Found]) -> Found:
    """Return facts together, the larger ones where there are two, without blocks that have none."""
    found: Found = {}
    for part in parts:
        for nest, blocks in part.items():
            there = found.setdefault(nest, {})
            for block, accesses in blocks.items():
                there[block] = round(max(accesses, there.get(block, 0.0)), 3)
    return {nest: {b: x for b, x in blocks.items() if x} for nest, blocks in found.items()}


def _in_parallel(core: Core, types: Types, nests: Sequence[Nest]) -> Found:
    """Return the facts of nests; more than a few are shared among processes.

    Implementations of users are known to this process only.
    """
    ours = {nest.name for each in user_implementations() for nest in _of(each, core, types)}
    here = [nest for nest in nests if nest.name in ours]
    there = sorted({nest.name for nest in nests} - ours)
    workers = min(code_threads(), len(nests) // _BATCH)
    if workers < 2:
        return merged([counted(core, nests)])
    print(f"counting register spills of {core.name}, once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "core.toml"
        described.write_text(core.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", __spec__.name, "--core", str(described), *there]
        command += [f"--types={json.dumps(asdict(types))}", f"--parts={workers}"]
        pipes = {"stdout": subprocess.PIPE, "text": True}
        started = [subprocess.Popen([*command, f"--part={n}"], **pipes) for n in range(workers)]
        answers = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise ValueError("a process that compiled blocks failed")
    return merged([counted(core, here), *map(json.loads, answers)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Count for the described cores, or be one of the processes of `ensure`."""
    parser = argparse.ArgumentParser(description="Count register spills of the described cores.")
    parser.add_argument("names", nargs="*", help="cores, all by default; with --core nests")
    parser.add_argument("--anew", action="store_true", help="count what is known, too")
    parser.add_argument("--core", help="TOML of a core: print what was counted")
    parser.add_argument("--types", type=lambda text: Types(**json.loads(text)))
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.core:
        core = Core.from_toml(options.core)
        nests = [n for n in nests_of(core, options.types) if n.name in options.names]
        print(json.dumps(counted(core, nests[options.part :: options.parts])))
        return
    for name in options.names or names():
        describe(Core.named(name), options.anew)


def describe(core: Core, anew: bool = False) -> None:
    """Write the facts of a described core into the package; what is there stays, or not."""
    for types in TYPES:
        if nests := nests_of(core, types) if anew else _missing(core, types):
            found = _in_parallel(core, types, nests)
            spills.keep(spills.SHIPPED, core, types, spills.found_for(core, types) | found)
            print(core.name, types, flush=True)


if __name__ == "__main__":
    main()
