"""Measuring on boards that a tracker of TVM's RPC knows, as many at once as there are."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tvm_blislike.errors import TargetError, UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.kernels import Bundle, Plan
from tvm_blislike.tuning.measure import BundleRunner, Measured, outcomes_of


class RemoteRunner(BundleRunner):
    """Builds here, measures on the boards registered under a key.

    Parameters
    ----------
    core, threads, plan, build_seconds
        As for `BundleRunner`; `core` is that of the boards.
    tracker : str
        "HOST:PORT".
    key : str
        What the boards are registered under.
    run_seconds : float
        Time that a board may take for a bundle, waiting for the board not included.

    Raises
    ------
    UsageError
        When `tracker` is not of that form.
    TargetError
        When the tracker does not answer or knows no such board.
    """

    def __init__(
        self,
        core: Core,
        threads: int,
        plan: Plan,
        tracker: str,
        key: str,
        build_seconds: float = 120.0,
        run_seconds: float = 60.0,
    ) -> None:
        host, colon, port = tracker.rpartition(":")
        if not (host and colon and port.isdigit()):
            raise UsageError(f"{tracker!r} is not of the form HOST:PORT")
        self._address = (host, int(port), key)
        self._run_seconds = run_seconds
        super().__init__(core, threads, plan, build_seconds)

    def _start(self) -> Any:
        from tvm.s_tir import meta_schedule as ms

        host, port, key = self._address
        config = ms.runner.RPCConfig(host, port, key, session_timeout_sec=int(self._run_seconds))
        try:
            boards = config.count_num_servers(allow_missing=False)
        except (ValueError, RuntimeError, OSError) as error:
            raise TargetError(f"no board {key!r} at the tracker {host}:{port}") from error
        return ms.runner.RPCRunner(config, max_workers=boards, initializer=kernels.worker_start())

    def _run(self, built: Sequence[tuple[Bundle, str]]) -> Measured:
        futures = {
            bundle: self._submit(bundle, library, kernels.run_there) for bundle, library in built
        }
        with ThreadPoolExecutor(len(futures) or 1) as pool:
            waiting = {pool.submit(future.result): b for b, future in futures.items()}
            for done in as_completed(waiting):
                yield waiting[done], outcomes_of(waiting[done], done.result())
