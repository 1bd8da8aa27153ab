"""Ctrl-C on the command line: one line, and the code that shells give it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Compiles until it is interrupted; the exception comes back through TVM as another one.
_COMPILE = """
import sys
import tvm
from tvm_blislike import cli, pipeline

def endless(mod, strategy):
    @tvm.transform.module_pass(opt_level=0, name="endless")
    def run(mod, context):
        print("compiling", flush=True)
        while True:
            pass
    try:
        return run(mod)
    except BaseException as error:
        if CHANGED:
            raise RuntimeError("something in C++") from error
        raise

pipeline.compile_functions = endless
cli.main()
"""


@pytest.mark.parametrize("changed", [False, True])
def test_an_interrupt_is_one_line(changed: bool, network_file: Path) -> None:
    library = network_file.with_suffix(".so")
    code = _COMPILE.replace("CHANGED", str(changed))
    command = [sys.executable, "-c", code, "compile", str(network_file), "-o", str(library)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "compiling\n"
        os.kill(process.pid, signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    own = [line for line in messages.splitlines() if not line.startswith("compiling ")]
    assert own == ["interrupted"]
    assert os.listdir(network_file.parent) == ["net.onnx"]
