"""Where the command line prints: results to stdout, progress and messages to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape

from tvm_blislike import progress as phases

# A pipe has no width; tables then get room enough to keep every cell on its line.
_PIPE_WIDTH = 200
_QUIET_SECONDS = 2.0


def stdout() -> Console:
    """Return the console of results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console of progress and messages."""
    return _console(sys.stderr)


def print_json(value: Any) -> None:
    """Print `value` as JSON to stdout."""
    print(json.dumps(value, indent=2))


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show that `what` goes on: a spinner on a terminal, else a line once it takes over 2 s.

    On a terminal a compilation also shows a bar of its phases.
    """
    console = stderr()
    started = time.perf_counter()
    if console.is_terminal:
        with console.status(escape(what)) as status:
            with phases.listening(lambda phase: status.update(f"{escape(what)} {_bar_of(phase)}")):
                yield
    else:
        notice = threading.Timer(_QUIET_SECONDS, console.print, [f"{escape(what)} ..."])
        notice.daemon = True
        notice.start()
        try:
            yield
        finally:
            notice.cancel()
    seconds = time.perf_counter() - started
    if seconds > _QUIET_SECONDS:
        console.print(f"{escape(what)}: {seconds:.1f} s")


def _bar_of(phase: str) -> str:
    """Return the phases of a compilation, those behind and the present one marked."""
    present = phases.PHASES.index(phase)
    marks = [
        "[green]" + "━━" * present,
        "[bold]" + "━━",
        "[dim]" + "━━" * (len(phases.PHASES) - 1 - present),
    ]
    return "[/]".join(marks) + f"[/] {phase}"


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done.

    Nothing runs between its calls: a spinner's thread would disturb what is measured.
    """
    console = stderr()

    def show(text: str) -> None:
        if console.is_terminal:
            console.print(f"\r{text:<60.60}", end="", markup=False)
        elif not text.startswith("round"):
            console.print(text, markup=False)

    yield show
    if console.is_terminal:
        console.print(f"\r{'':<60}\r", end="")


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
    """Yield a function that shows which share of `what` is done; only its calls draw."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), auto_refresh=False, transient=True) as progress:
        task = progress.add_task(escape(what), total=1.0)
        yield lambda share: progress.update(task, completed=share, refresh=True)


def _console(file: Any) -> Console:
    return Console(file=file, width=None if file.isatty() else _PIPE_WIDTH, highlight=False)
