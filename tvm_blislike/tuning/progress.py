"""The live display of a sweep, redrawn between measurements only: no thread disturbs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tvm_blislike.records.record import Record
from tvm_blislike.tuning.measure import Outcome
from tvm_blislike.tuning.tasks import Task

_SHOWN = 12
_HEADINGS = ("layer", "share", "best so far", "ms", "predicted gain", "measured gain", "runs")


class Progress:
    """Shows each layer with its best time so far, the gain, and the time left.

    On a terminal the last layers are redrawn in place; elsewhere each layer is one line.

    Parameters
    ----------
    console : Console
        Where to.
    tasks : int
        Layers to come.
    end : float, optional
        `time.monotonic()` at which a budget ends.
    """

    def __init__(self, console: Console, tasks: int = 0, end: float | None = None) -> None:
        self.console, self.end = console, end
        self._tasks = tasks
        self._started = time.monotonic()
        self._rows: dict[object, list[str]] = {}
        self._done: set[object] = set()
        self._counts: dict[object, int] = {}
        self._what = "starting"
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def expect(self, tasks: int) -> None:
        """Say how many layers there are."""
        self._tasks = tasks

    def working(self, what: str) -> None:
        """Show what is being done."""
        news, self._what = what != self._what, what
        if news and self._live is None:
            self._say(f"{time.monotonic() - self._started:5.0f} s {what}")
        self._draw()

    def measured(
        self,
        task: Task,
        outcomes: Sequence[Outcome],
        best: Record | None,
        untuned: Record | None,
    ) -> None:
        """Show the best of a layer so far, and what went wrong."""
        workload = task.workload
        self._counts[workload] = self._counts.get(workload, 0) + len(outcomes)
        self._rows[workload] = _cells(task, best, untuned, self._counts[workload])
        self._what = "measuring"
        for outcome in outcomes:
            if outcome.status != "ok":
                self._say(f"{outcome.status}: {_named(outcome)} for {workload}: {outcome.reason}")
        if self._live is None:
            self.console.print(" ".join(self._rows[workload]), markup=False, soft_wrap=True)
        self._draw()

    def finished(self, task: Task) -> None:
        """Count a layer as done."""
        self._done.add(task.workload)
        self._draw()

    def _say(self, text: str) -> None:
        self.console.print(escape(text), soft_wrap=True)

    def _draw(self) -> None:
        if self._live is None:
            return
        table = Table(box=None, pad_edge=False)
        for heading in _HEADINGS:
            table.add_column(heading, justify="left" if heading[0] in "lb" else "right")
        for row in list(self._rows.values())[-_SHOWN:]:
            table.add_row(*map(escape, row))
        bar = ProgressBar(total=max(self._tasks, 1), completed=len(self._done), width=40)
        status = f"{len(self._done)} of {self._tasks} layers, {self._what}{self._time_left()}"
        self._live.update(Group(table, bar, Text(status)), refresh=True)

    def _time_left(self) -> str:
        """Return the time left at the present pace, or of the budget if that is shorter."""
        now = time.monotonic()
        known = [self.end - now] if self.end is not None else []
        if self._done:
            known.append((now - self._started) / len(self._done) * (self._tasks - len(self._done)))
        return f", {max(0.0, min(known)):.0f} s left" if known else ""


def _cells(task: Task, best: Record | None, untuned: Record | None, count: int) -> list[str]:
    layers = f" x{task.count}" if task.count > 1 else ""
    cells = [f"{task.workload}{layers}", f"{100 * task.share:.0f}%"]
    if best is None:
        return [*cells, "none is right", "", "", "", str(count)]
    measured = f"{untuned.median_seconds / best.median_seconds:.2f}x" if untuned else ""
    predicted = task.choice.estimate.seconds / best.predicted_seconds
    return [
        *cells,
        f"{best.config.implementation} {best.config.mr}x{best.config.nr}",
        f"{1e3 * best.median_seconds:.3f}",
        f"{predicted:.2f}x",
        measured,
        str(count),
    ]


def _named(outcome: Outcome) -> str:
    c = outcome.config
    return f"{c.implementation} {c.mr}x{c.nr}"
