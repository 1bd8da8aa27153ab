"""Where everything lies in the memory of a runner, as `static/standalone.c` has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_blislike.standalone.call_plan import rounded

# The C program checks both: more than its structures take, apart from a pointer for each tensor.
_HEAD_BYTES = 768
LANE_BYTES = 128


@dataclass(frozen=True)
class Layout:
    """The memory of a runner: its head, copies of inputs, the workspace, then for each thread.

    Parameters
    ----------
    head_bytes : int
        Of its structures.
    input_places : tuple of int
        Where copies of inputs begin that are not aligned.
    workspace_start, lanes_start : int
        Where the workspace begins, and what threads have for themselves.
    main_scratch, task_scratch : int
        Most bytes that a kernel asks for outside of a parallel loop, and in one of its tasks.
    """

    head_bytes: int
    input_places: tuple[int, ...]
    workspace_start: int
    lanes_start: int
    main_scratch: int
    task_scratch: int

    @property
    def main_bytes(self) -> int:
        """Bytes for any number of threads."""
        return self.lanes_start + self.main_scratch

    @property
    def each_bytes(self) -> int:
        """Bytes for each thread."""
        return LANE_BYTES + self.task_scratch

    def bytes(self, threads: int) -> int:
        """Return the bytes of a runner."""
        return self.main_bytes + threads * self.each_bytes

    def defined(self) -> Iterator[str]:
        """Yield the lines of C that define it."""
        yield f"#define HEAD_BYTES {self.head_bytes}"
        yield f"#define LANE_BYTES {LANE_BYTES}"
        yield f"#define WORKSPACE_START {self.workspace_start}u"
        yield f"#define LANES_START {self.lanes_start}u"
        yield f"#define MAIN_SCRATCH_BYTES {self.main_scratch}u"
        yield f"#define TASK_SCRATCH_BYTES {self.task_scratch}u"
        yield f"#define MAIN_BYTES {self.main_bytes}u"
        yield f"#define EACH_BYTES {self.each_bytes}u"


def laid_out(
    inputs: Sequence[int], outputs: int, workspace: int, main_scratch: int, task_scratch: int
) -> Layout:
    """Return the layout.

    Parameters
    ----------
    inputs : sequence of int
        Bytes of each input.
    outputs : int
        Their number.
    workspace, main_scratch, task_scratch : int
        Bytes of the planned tensors, and as of `Layout`.
    """
    head = rounded(_HEAD_BYTES + 8 * (len(inputs) + outputs))
    places, end = [], head
    for size in inputs:
        places.append(end)
        end += rounded(size)
    return Layout(head, tuple(places), end, end + workspace, main_scratch, task_scratch)
