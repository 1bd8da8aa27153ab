"""`Schedule.tensorize` is public, and yet what broke first when a part of TVM was exchanged.

It copies the intrinsic by way of a graph in JSON, a function of apache-tvm-ffi: with a version that
TVM was not built with, the process crashes. So it is tried in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("tensorizing.py")


def test_tensorize_survives_the_installed_libraries() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    versions = [f"{n} {importlib.metadata.version(n)}" for n in ("apache-tvm", "apache-tvm-ffi")]
    message = f"Schedule.tensorize does not work with {' and '.join(versions)}"
    assert (done.returncode, done.stdout) == (0, "tensorized\n"), message
