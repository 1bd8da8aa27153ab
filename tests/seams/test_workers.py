"""TVM's worker processes know that they are some, whichever module imports TVM first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tvm_blislike.tvm_seams
from tvm_blislike.tvm_seams import measuring, workers

FOLDER = Path(tvm_blislike.tvm_seams.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def test_a_process_knows_that_it_is_a_worker() -> None:
    worker = measuring.Worker(lambda: None)
    try:
        assert worker.ask(workers.is_worker), "TVM starts its workers in another way"
        assert not workers.is_worker()
    finally:
        worker.close()


@pytest.mark.parametrize("module", MODULES)
def test_tvm_asks_amid_the_import_of_any_module(module: str) -> None:
    program = f"import tvm_blislike.tvm_seams.{module}, tvm"
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
