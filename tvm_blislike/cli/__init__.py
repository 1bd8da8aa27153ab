"""The command `tvm-blislike`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

# As shells report the end by SIGINT.
INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line and exit with the documented code."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    # It is ignored where a shell started this in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from tvm_blislike.cli.app import app

        app(prog_name="tvm-blislike")
    except BaseException:
        # On its way through TVM or a compiler it may have become another exception.
        if not interrupted:
            raise
        # A terminal has just shown ^C.
        sys.stderr.write("\ninterrupted\n" if sys.stderr.isatty() else "interrupted\n")
        sys.exit(INTERRUPTED)
