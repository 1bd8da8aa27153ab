"""Building candidates on the workers of any `concurrent.futures.Executor`.

A worker needs this package and TVM, no C compiler and no common folder: it returns object files,
which are linked here, those of one group while others are compiled. What runs them stays the
business of the runner.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.errors import ToolchainError
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.validity import versions
from tvm_blislike.runtime.library import link
from tvm_blislike.schedules import register_implementation, user_implementations
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.effort import effort
from tvm_blislike.tuning.kernels import CandidateGroup

# Suffix and content of an object file.
Object = tuple[str, bytes]
_HINT = "what was measured is kept: the same call goes on from there"


@dataclass(frozen=True)
class ExecutorBuilder:
    """Builds groups of candidates by an executor, which stays its owner's to shut down.

    Parameters
    ----------
    executor : Executor
        Whose workers compile.
    folder : str
        Where libraries are put.
    compiler : sequence of str
        Command to link with.
    others : sequence of str
        Object files that belong into each library.
    seconds : float
        Time without any build that ends, after which those that are left have failed.
    """

    executor: Executor
    folder: str
    compiler: Sequence[str]
    others: Sequence[str]
    seconds: float

    def build(self, groups: Sequence[CandidateGroup]) -> list[tuple[str, str]]:
        """Return for each group its library and "", or "" and what went wrong.

        Raises
        ------
        ToolchainError
            When no worker ever answers, or has other versions: no candidate is to blame.
        """
        own = user_implementations()
        try:
            # The longest first: fewer workers wait for the last ones.
            futures = {
                group: self.executor.submit(_objects_of, group, own, versions())
                for group in sorted(groups, key=_effort, reverse=True)
            }
        except (BrokenExecutor, RuntimeError) as error:
            raise ToolchainError(f"the executor takes no more work: {error}", _HINT) from error
        results = {future: self._result(future) for future in self._ended({*futures.values()})}
        return [results[futures[group]] for group in groups]

    def _ended(self, futures: set[Future[list[Object]]]) -> Iterator[Future[list[Object]]]:
        """Yield them as they end, and at last those that do not."""
        waiting = futures
        while waiting:
            done, waiting = wait(waiting, self.seconds, FIRST_COMPLETED)
            if not done:
                break
            yield from done
        for future in waiting:
            future.cancel()
        if waiting and len(waiting) == len(futures):
            raise ToolchainError(
                f"no worker of the executor built anything in {self.seconds:.0f} s", _HINT
            )
        yield from waiting

    def _result(self, future: Future[list[Object]]) -> tuple[str, str]:
        if future.cancelled() or not future.done():
            return "", f"no answer for {self.seconds:.0f} s"
        try:
            return self._linked(future.result()), ""
        except (BrokenExecutor, CancelledError, ImportError) as error:
            raise ToolchainError(f"the executor's workers cannot build: {error}", _HINT) from error
        except Exception as error:  # of the compiler
            return "", f"{type(error).__name__}: {error}"

    def _linked(self, objects: Sequence[Object]) -> str:
        place = Path(tempfile.mkdtemp(dir=self.folder))
        names = [place / f"{number}{suffix}" for number, (suffix, _) in enumerate(objects)]
        for name, (_, content) in zip(names, objects, strict=True):
            name.write_bytes(content)
        library = str(place / "candidates.so")
        link(self.compiler, library, [*map(str, names), *self.others])
        return library


def _effort(group: CandidateGroup) -> float:
    return len(group.configs) * effort(group.workload)


def _objects_of(
    group: CandidateGroup,
    implementations: Sequence[Implementation],
    wanted: Mapping[str, str],
) -> list[Object]:
    """Compile the candidates of a group; runs on a worker.

    Raises
    ------
    ImportError
        When versions differ: the kernels would be others.
    """
    if versions() != wanted:
        raise ImportError(f"a worker has {versions()}, this process {wanted}")
    for implementation in implementations:
        register_implementation(implementation, override=True)
    found: list[Object] = []

    def take(_output: str, objects: Sequence[str], **_: Any) -> None:
        found.extend((Path(name).suffix, Path(name).read_bytes()) for name in objects)

    with compiler_lock(), tempfile.TemporaryDirectory() as folder:
        kernels.build(group).export_library(str(Path(folder) / "candidates.so"), fcompile=take)
    return found


def prepare() -> None:
    """Import what a worker compiles with; called before there is anything to compile."""
    import tvm_blislike.passes.schedule
    import tvm_blislike.passes.tir_pipeline  # noqa: F401
