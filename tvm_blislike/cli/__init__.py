"""The command `tvm-blislike`."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with the documented code."""
    from tvm_blislike.cli.app import app

    app(prog_name="tvm-blislike")
