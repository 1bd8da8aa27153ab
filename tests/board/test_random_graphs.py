"""Random graphs, as those of `tests/fuzz`, on the emulated board: NEON computes the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import case
from effort import EFFORT
from emulated_board import Board
from verdicts import FAULTS, Values, Way, verdict, way_of

from tvm_blislike import CompiledModel
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.export import manifest
from tvm_blislike.export.output_names import output_files

CORES = ("cortex-a53", "cortex-a72", "cortex-a76")
CHUNK = 4
# Behind those that `tests/fuzz` runs natively.
SEEDS = range(100_000, 100_000 + 4 * CHUNK * EFFORT)


def on_board(board: Board, core: str, folder: Path, model: CompiledModel, inputs: Values) -> Values:
    """Return what `blis_run` computes there.

    Raises
    ------
    UnsupportedOperatorError
        Where TVM has a function in Python only, so that no board can run it.
    """
    if model.functions_of_python:
        raise UnsupportedOperatorError(f"no board has {', '.join(model.functions_of_python)}")
    folder.mkdir()
    model.export(folder / "model.so")
    report = model.explain()
    manifest.write(folder, manifest.manifest("model.so", model.variants, model.target, report))
    arguments = ["--output", str(folder / "out")]
    for name, value in inputs.items():
        np.save(folder / f"{name}.npy", value)
        arguments += ["--input", f"{name}={folder / name}.npy"]
    replace(board, cpu=core).run(board.programs / "blis_run", folder, *arguments)
    names = [spec.name for spec in model.outputs]
    files = zip(names, output_files(names), strict=True)
    return {name: np.load(folder / "out" / file) for name, file in files}


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_random_graphs(first: int, board: Board, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        made, core = case(seed), CORES[seed % len(CORES)]

        def run(model: CompiledModel, inputs: Values) -> Values:
            return on_board(board, core, tmp_path / str(seed), model, inputs)  # noqa: B023

        way = Way(core, way_of(seed).only, threads=seed % 2 + 1)
        found = verdict(made.model, made.inputs, made.outputs, made.tolerances, way, run)
        unnamed = "no board has" in found.text
        assert found.kind not in FAULTS or unnamed, f"{seed} on {core}: {found.kind} {found.text}"
