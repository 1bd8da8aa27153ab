"""The probe as a folder for a board: kernels, what to measure, and how facts follow from it.

`blis_run --probe` there measures and writes the core's TOML; it knows no formula of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_blislike.export import bundle, manifest
from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.probe.builders import HALF_BITS
from tvm_blislike.probe.expression import Expression
from tvm_blislike.probe.facts import cache_facts, core_facts
from tvm_blislike.probe.kernels import accumulators, block_bytes, compiled
from tvm_blislike.probe.measure import BOARD_MEMORY_BYTES, FULL
from tvm_blislike.probe.result import BEST_SHARE, described
from tvm_blislike.probe.rounds import LEAST_ROUNDS
from tvm_blislike.probe.steps import memory_bytes_of, steps_of

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core

LIBRARY, PLAN = "probe.so", "probe.json"
# Raise it when blis_run could misread an older plan.
_FORMAT = 1


def write_bundle(core: Core, folder: str | os.PathLike[str], cc: str | None = None) -> None:
    """Write a folder for a board on which `blis_run --probe` measures it, all or nothing.

    Parameters
    ----------
    core : Core
        The described core that is nearest to the board's.
    folder : path
        New, empty, or an older bundle, which is replaced.
    cc : str, optional
        Command of a compiler for the board.

    Raises
    ------
    TargetError, OutputError, ToolchainError
        As of `export.bundle.write`.
    """
    target = core.target_config()
    bundle.require_bundle(folder, target)
    compiler = find_compiler(target, cc)
    with bundle.fresh_folder(Path(folder)) as fresh:
        library = str(fresh / LIBRARY)
        compiled(core).export_library(library, fcompile=lambda *a, **k: link(compiler, *a, **k))
        bundle.write_programs(fresh, target, cc, extras=False)
        text = json.dumps(plan_of(core), indent=1) + "\n"
        (fresh / PLAN).write_text(text, encoding="utf-8")
        manifest.write(fresh, manifest.of_no_model(core.name, core.cores, target))


def plan_of(core: Core) -> dict[str, Any]:
    """Return what `probe.h` reads: the steps, the facts as expressions, and the TOML to fill in."""
    memory = memory_bytes_of(core, BOARD_MEMORY_BYTES)
    steps = steps_of(core, core.cores, memory)
    run_seconds, seconds = FULL
    facts = {name: fact.plain() for name, fact in _facts(core, steps).items()}
    return {
        "format": _FORMAT,
        "library": LIBRARY,
        "sums": accumulators(core),
        "lanes": core.lanes("float32"),
        "block_bytes": block_bytes(core),
        "memory_bytes": -(-memory // block_bytes(core)) * block_bytes(core),
        "state": HALF_BITS,
        "threads": core.cores,
        "run_microseconds": round(1e6 * run_seconds),
        "milliseconds": round(1e3 * seconds),
        "least_rounds": LEAST_ROUNDS,
        "best_percent": round(100 * BEST_SHARE),
        "steps": [{"name": n, **dataclasses.asdict(step)} for n, step in steps.items()],
        "facts": [{"name": name, "value": fact} for name, fact in facts.items()],
        "toml": _template(core, steps),
    }


def _facts(core: Core, steps: Any) -> dict[str, Expression]:
    facts = dict(core_facts(core, steps))
    for cache in core.caches:
        found = cache_facts(cache, steps).items()
        facts |= {f"{cache.level}.{name}": fact for name, fact in found}
    return facts


def _template(core: Core, steps: Any) -> str:
    """Return the core's TOML with `@NAME@` for the value of each fact."""
    probed = described(core, core.cores, "fork all" in steps)
    notes = (*probed.notes, "measured by blis_run --probe on the board")
    # A number for each fact, so that it stands in the text.
    caches = tuple(
        dataclasses.replace(cache, **dict.fromkeys(cache_facts(cache, steps), 1.0))
        for cache in core.caches
    )
    facts = core_facts(core, steps)
    missing = {name: 1.0 for name in facts if getattr(core, name) is None}
    text = dataclasses.replace(probed, notes=notes, caches=caches, **missing).to_toml()
    head, *tables = text.split("[[caches]]")
    parts = [_with_places(head, "", facts)]
    for cache, table in zip(core.caches, tables, strict=True):
        parts.append(_with_places(table, f"{cache.level}.", cache_facts(cache, steps)))
    return "[[caches]]".join(parts)


def _with_places(text: str, prefix: str, facts: dict[str, Expression]) -> str:
    for name in facts:
        text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = @{prefix}{name}@", text)
        assert count == 1, name
    return text
