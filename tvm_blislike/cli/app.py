"""The command group: errors become one message and an exit code, never a traceback."""

from __future__ import annotations

import warnings
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from tvm_blislike.cli import commands, compile, pictures, records, speed, tune
from tvm_blislike.cli.terminal import stderr
from tvm_blislike.errors import BlislikeError, all_errors


class _Group(TyperGroup):
    """Commands whose errors are printed with their hint."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except BlislikeError as error:
            stderr().print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
            if error.hint:
                stderr().print(f"[bold]hint:[/]  {escape(error.hint)}", soft_wrap=True)
            raise typer.Exit(error.exit_code) from error


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    stderr().print(f"[bold yellow]warning:[/] {escape(str(message))}", soft_wrap=True)


def _exit_codes() -> str:
    codes = {0: "success", 1: "internal error"}
    codes |= {error.exit_code: error.summary for error in all_errors()}
    return "Exit codes: " + "; ".join(f"{code} {text}" for code, text in codes.items()) + "."


app = typer.Typer(
    cls=_Group,
    help="Compile ONNX models with BLIS-style generated CPU kernels, and run and measure them.",
    epilog=_exit_codes(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command in (
    compile.compile,
    commands.run,
    commands.explain,
    tune.tune,
    speed.bench,
    pictures.report,
    speed.probe,
    commands.targets,
):
    app.command(epilog=_exit_codes())(_command)
app.add_typer(records.app, name="records")
