"""The probe's kernels on a board that TVM's RPC reaches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.errors import TargetError
from tvm_blislike.export.link import find_compiler, link
from tvm_blislike.probe.builders import HALF_BITS
from tvm_blislike.probe.kernels import accumulators, block_bytes, compiled
from tvm_blislike.probe.steps import Step
from tvm_blislike.tvm_seams import runtime

if TYPE_CHECKING:
    from tvm_blislike.hardware import Core

_LIBRARY = "blislike_probe.so"


class BoardBench:
    """A board; its own clock tells the time.

    Parameters
    ----------
    session : tvm.rpc.RPCSession
        Of the board, in use for nothing else.
    core : Core
        The board's core as described.
    threads : int
        Threads at most.
    memory_bytes : int
        Bytes of memory that kernels may read.

    Raises
    ------
    TargetError
        When the board cannot run the kernels.
    ToolchainError
        When there is nothing to link them with for the board.
    """

    def __init__(self, session: Any, core: Core, threads: int, memory_bytes: int) -> None:
        import tvm

        self._session, self._device, self._used = session, session.cpu(), 0
        self._library = _uploaded(session, core)
        state = np.full((threads, accumulators(core), core.lanes("float32")), HALF_BITS, "int32")
        self._state = tvm.runtime.tensor(state, self._device)
        blocks = -(-memory_bytes // block_bytes(core))
        size = blocks * block_bytes(core) // 4
        self._data = tvm.runtime.empty((size,), "int32", self._device)
        try:
            # Every page gets memory of its own.
            self._library["write"](self._data, self._state, 1, blocks, 1)
        except Exception as error:  # TVM raises many kinds
            what = str(error).strip().splitlines()[-1:]
            raise TargetError(f"the board does not run code for {core.name}: {what}") from error

    def seconds(self, step: Step, repeats: int) -> float:
        """Run a step's kernel twice; return how long the second run took on the board."""
        if step.tasks != self._used:
            runtime.use_fastest_cores(self._session, step.tasks)
            self._used = step.tasks
        timed = self._library.time_evaluator(step.kernel, self._device, number=1)
        return float(timed(self._data, self._state, step.tasks, step.blocks, repeats).mean)


def _uploaded(session: Any, core: Core) -> Any:
    """Return the kernels as a module of the board."""
    compiler = find_compiler(core.target_config())
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / _LIBRARY)
        compiled(core).export_library(path, fcompile=lambda *a, **k: link(compiler, *a, **k))
        session.upload(path)
    try:
        return session.load_module(_LIBRARY)
    except Exception as error:  # TVM raises many kinds
        what = str(error).strip().splitlines()[-1:]
        raise TargetError(f"the board cannot load code for {core.name}: {what}") from error
