"""One board: what is linked into the libraries that it runs, and the process here that uses it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.farm import Farm
from tvm_blislike.tuning.kernels import CandidateGroup, Timing
from tvm_blislike.tvm_seams import runtime, wheels
from tvm_blislike.tvm_seams.measuring import Worker

_SOURCE = Path(__file__).with_name("board_side.c")
# Time to reach a board that the tracker says is free.
_CONNECT_SECONDS = 10.0
# Time that a board may take longer than its session, which it should end by itself.
_GRACE_SECONDS = 5.0


def build_board_side(target: Mapping[str, Any], folder: str) -> str:
    """Compile `board_side.c` for a board; return the path of the object file.

    Raises
    ------
    ToolchainError
        When there is no C compiler for that architecture, or it fails.
    """
    result = str(Path(folder) / "board_side.o")
    headers = wheels.headers()
    folders = {path.parents[name.count("/")] for name, path in headers.items()}
    includes = [f"-I{folder}" for folder in sorted(folders)]
    command = [*find_builder(target), "-O1", "-fPIC", *includes, "-c", str(_SOURCE), "-o", result]
    run_tool(command, f"compile {_SOURCE.name}")
    return result


@dataclass(frozen=True)
class Reply:
    """What came of a group on a board.

    Parameters
    ----------
    kind : str
        "ok"; "failed": a candidate did; "lost": the board or a candidate did, it cannot be told;
        "unreachable": it never began.
    numbers : tuple of float
        As of `kernels.run`.
    message : str
        What went wrong.
    emulated : bool
        Whether the board is known to be an emulated one.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    message: str = ""
    emulated: bool = False


class BoardUser:
    """A process that measures groups on one board after the other.

    Parameters
    ----------
    farm : Farm
        The boards.
    run_seconds : float
        Time that a board may take for a group.
    start : callable
        Prepares the process; see `kernels.worker_start`.
    """

    def __init__(self, farm: Farm, run_seconds: float, start: Callable[[], None]) -> None:
        self._farm = farm
        self._run_seconds = run_seconds
        self._worker = Worker(start)
        self.connected = False

    def measure(self, group: CandidateGroup, timing: Timing, library: str) -> Reply:
        """Take a free board, measure a library there, and give the board back."""
        return self._use(library, group, timing)

    def probe(self, library: str) -> Reply:
        """Take a free board, load a library without candidates there, and give the board back."""
        return self._use(library)

    def _use(self, library: str, *group_and_timing: Any) -> Reply:
        self.connected = False
        try:
            session_seconds = ceil(self._run_seconds)
            self._worker.ask(_connect, self._farm, session_seconds, timeout=_CONNECT_SECONDS)
        except Exception as error:  # TVM raises many kinds
            return Reply("unreachable", message=str(error) or type(error).__name__)
        self.connected = True
        try:
            limits = {"timeout": self._run_seconds + _GRACE_SECONDS}
            return self._worker.ask(_serve, self._run_seconds, library, *group_and_timing, **limits)
        except TimeoutError:
            return Reply("lost", message="the board does not answer")
        except ChildProcessError:
            return Reply("failed", message="it crashed before it reached the board")
        except Exception as error:
            return Reply("failed", message=str(error))

    def end(self) -> None:
        """End the process; what `measure` waits for in another thread is then unreachable."""
        self._worker.end()


# In the process of a `BoardUser`: the session that is open.
_session: Any = None


def _connect(farm: Farm, session_seconds: int) -> None:
    global _session
    from tvm import rpc

    tracker = rpc.connect_tracker(farm.host, farm.port)
    _session = tracker.request(farm.key, session_timeout=session_seconds, max_retry=1)


def _serve(run_seconds: float, library: str, *group_and_timing: Any) -> Reply:
    global _session
    started, emulated = time.monotonic(), False
    try:
        _session.upload(library)
        module = _session.load_module(Path(library).name)
        emulated = bool(module["blislike_board_side"]())
        numbers = _run(module, *group_and_timing) if group_and_timing else []
        return Reply("ok", tuple(numbers), "", emulated)
    except Exception as error:
        if time.monotonic() - started > 0.95 * run_seconds:
            return Reply("failed", (), f"took longer than {run_seconds:.0f} s", emulated)
        return Reply("failed" if _answers() else "lost", (), str(error), emulated)
    finally:
        # The board is free again when nothing refers to the session.
        _session = module = None
        gc.collect()


def _run(module: Any, group: CandidateGroup, timing: Timing) -> list[float]:
    runtime.use_fastest_cores(_session, group.threads)
    device = _session.cpu()
    return kernels.run(group, timing, module, device, kernels.allocate(group, device))


def _answers() -> bool:
    """Whether the session is still there: then what went wrong is not the board's business."""
    try:
        runtime.pool_of(_session)
    except Exception:
        return False
    return True
