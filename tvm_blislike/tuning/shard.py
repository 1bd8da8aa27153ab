"""One sweep by several machines: each measures some layers, and their records merge.

A layer is never divided: its candidates are compared side by side in one process, and times of two
machines differ by more than two candidates do. Where there are more shards than layers, some have
nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_blislike.errors import UsageError
from tvm_blislike.tuning.effort import effort
from tvm_blislike.tuning.tasks import Task

_HINT = (
    "write I/N with I from 0 to N - 1, such as 0/2 and 1/2: Kubernetes counts so in "
    "JOB_COMPLETION_INDEX, Slurm's array with --array=0-1 in SLURM_ARRAY_TASK_ID"
)


@dataclass(frozen=True)
class Shard:
    """One part of a sweep.

    Parameters
    ----------
    index : int
        Which one, from 0.
    count : int
        Of how many.
    """

    index: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Return the shard "I/N".

        Raises
        ------
        UsageError
            When it is not of that form, or there is no such shard.
        """
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise UsageError(f"the shard {text!r} is not of the form I/N", _HINT)
        if int(index) >= int(count):
            raise UsageError(f"there is no shard {index} of {count}: they count from 0", _HINT)
        return Shard(int(index), int(count))

    def of(self, tasks: Sequence[Task]) -> list[Task]:
        """Return its layers, in their order; each layer belongs to one shard.

        The largest goes first, each to the shard that has least to do. What a layer takes follows
        from its workload alone: predicted times would do, but each machine's probe differs a
        little, and with it the division.
        """
        load, owner = [0.0] * self.count, {}
        for task in sorted(tasks, key=lambda t: (-effort(t.workload), t.workload.to_json())):
            least = load.index(min(load))
            owner[task.workload] = least
            load[least] += effort(task.workload)
        return [task for task in tasks if owner[task.workload] == self.index]

    def part(self, trials: int | None) -> int | None:
        """Return how many of the measurements of all shards are this one's."""
        return None if trials is None else (trials + self.count - 1 - self.index) // self.count

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
