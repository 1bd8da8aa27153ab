"""The command group: errors become one message and an exit code, never a traceback."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from tvm_blislike.cli import cache, commands, compile, pictures, quantize, records, speed, tune
from tvm_blislike.cli.terminal import stderr
from tvm_blislike.errors import BlislikeError, all_errors


class _Group(TyperGroup):
    """Commands whose errors are printed with their hint."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings(), _shown_messages():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except BlislikeError as error:
            stderr().print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
            if error.hint:
                stderr().print(f"[bold]hint:[/]  {escape(error.hint)}", soft_wrap=True)
            raise typer.Exit(error.exit_code) from error


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    stderr().print(f"[bold yellow]warning:[/] {escape(str(message))}", soft_wrap=True)


class _Lines(logging.Handler):
    """Prints what the library tells beside its results as lines of their own."""

    def emit(self, record: logging.LogRecord) -> None:
        stderr().print(escape(record.getMessage()), soft_wrap=True)


@contextlib.contextmanager
def _shown_messages() -> Iterator[None]:
    log, handler = logging.getLogger("tvm_blislike"), _Lines(logging.INFO)
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _exit_codes() -> str:
    codes = {0: "success", 1: "internal error"}
    codes |= {error.exit_code: error.summary for error in all_errors()}
    return "Exit codes: " + "; ".join(f"{code} {text}" for code, text in codes.items()) + "."


app = typer.Typer(
    cls=_Group,
    help="Compile ONNX models with BLIS-style generated CPU kernels, and run and measure them.",
    epilog=_exit_codes(),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        versions = {name: version(name) for name in ("tvm-blislike", "apache-tvm")}
        print(", ".join(f"{name} {found}" for name, found in versions.items()))
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_show_version,
            help="Show the versions of this package and of TVM.",
        ),
    ] = False,
) -> None:
    pass


for _command in (
    compile.compile,
    commands.run,
    commands.explain,
    quantize.quantize,
    tune.tune,
    speed.bench,
    pictures.report,
    speed.probe,
    commands.targets,
):
    app.command(epilog=_exit_codes())(_command)
app.add_typer(records.app, name="records")
app.add_typer(cache.app, name="cache")
