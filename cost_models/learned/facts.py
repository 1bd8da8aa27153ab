"""What a learned model was trained for, and refusing it for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.model.validity import core_facts


@dataclass(frozen=True)
class Facts:
    """What the records of a model have in common, and how many there are.

    Parameters
    ----------
    core : str
        Name of the core.
    core_facts : str
        Digest of its facts, as records have it.
    threads : mapping of str to int
        Records per number of threads.
    implementations : mapping of str to int
        Records per implementation.
    in_model : bool
        Whether some were measured inside a model: then such times are predicted.
    versions : mapping of str to str
        Of this package and of TVM, which wrote the records.
    """

    core: str
    core_facts: str
    threads: Mapping[str, int]
    implementations: Mapping[str, int]
    in_model: bool
    versions: Mapping[str, str]

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(self.threads.values())

    def require(self, core: Core, threads: int) -> None:
        """Raise UsageError for a core or a number of threads that no record is of."""
        if self.core_facts != core_facts(core):
            raise UsageError(
                f"the learned model is of {self.core}; {core.name} has other facts",
                f"train one with records of {core.name}: tvm-blislike records train",
            )
        if str(threads) not in self.threads:
            seen = " and ".join(sorted(self.threads, key=int))
            raise UsageError(
                f"the learned model knows times with {seen} threads, not with {threads}",
                f"measure some (tvm-blislike tune --threads {threads}), then records train",
            )
