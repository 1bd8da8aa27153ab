"""The programs of a bundle, built for this machine with address and undefined-behavior sanitizers.

GCC and Clang have both; the compiler of ziglang, which stands in where a machine has neither, has
only the second.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_blislike.export import bundle
from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.hardware import native_core

_BOTH = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
_COMMON = ("-g", "-O1", "-fno-omit-frame-pointer")
# The programs are short-lived and free little. Sizes from damaged files shall not cost memory.
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
# Statements of a main function that is given its `count` of arguments, 1.
HEAP_FAULT = "char* p = (char*)malloc(8); p[7 + count] = 1; return p[0] & 0;"
SIGNED_FAULT = "int x = 2147483647 - 1 + count; return x + count == 0;"
# Documented exit codes; a sanitizer's own is 1, that of a signal is negative.
CODES = {0, 2, 3, 5, 6, 7}


@dataclass(frozen=True)
class Programs:
    """`blis_run` and `blis_rpc` in a bundle, built with sanitizers.

    Parameters
    ----------
    folder : Path
        The bundle.
    address : bool
        Whether the address sanitizer is among them.
    """

    folder: Path
    address: bool

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run `blis_run`; raise AssertionError when it crashes or a sanitizer has a complaint."""
        command = [str(self.folder / "blis_run"), *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment(),
        )
        assert is_clean(done.stderr), done.stderr
        assert done.returncode in CODES, f"exit {done.returncode}: {done.stderr}"
        assert (done.returncode == 0) == ("error: " not in done.stderr), done.stderr
        return done


def environment() -> dict[str, str]:
    """Return the environment for programs with sanitizers."""
    return {**os.environ, **_OPTIONS}


def is_clean(messages: str) -> bool:
    """Return whether no sanitizer has a complaint."""
    return "Sanitizer" not in messages and "runtime error" not in messages


def build(folder: Path) -> Programs:
    """Build both programs inside a bundle for this machine, in place of its own."""
    options = sanitizers()
    for name in ("blis_run", "blis_rpc"):
        bundle.build_program(folder, name, [*_builder(), *_COMMON, *options], folder / name)
    return Programs(folder, options == _BOTH)


def build_test(folder: Path, source: Path, program: Path) -> None:
    """Build a program of a test that includes headers of a bundle's programs."""
    command = [*_builder(), *_COMMON, *sanitizers(), "-std=c++17"]
    command += ["-fno-exceptions", "-fno-rtti", f"-I{folder / 'src'}", str(source)]
    run_tool([*command, "-o", str(program)], f"build {source.name}")


@functools.cache
def sanitizers() -> tuple[str, ...]:
    """Return the compiler's options for as many of the two sanitizers as it has."""
    return _BOTH if finds(HEAP_FAULT, _BOTH) else _UNDEFINED


def finds(fault: str, options: Sequence[str]) -> bool:
    """Return whether a program with a fault, statements of C, ends with an error.

    Not every compiler that takes an option does what it says.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "fault.cc"), Path(folder, "fault")
        source.write_text(f"#include <stdlib.h>\nint main(int count, char**) {{ {fault} }}\n")
        command = [*_builder(), *_COMMON, *options, str(source), "-o", str(program)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        done = subprocess.run([program], capture_output=True, check=False, env=environment())
        return done.returncode != 0


def _builder() -> list[str]:
    return find_builder(native_core().target_config())
