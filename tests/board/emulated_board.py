"""An aarch64 board emulated by qemu-user, prepared by this one script without touching the system.

    python tests/board/emulated_board.py                 # a TVM RPC server on loopback
    python tests/board/emulated_board.py --run BUNDLE [arguments of blis_run]

The emulator and an aarch64 C library are those of the system where it has them, else Debian's
packages, unpacked into build/board. Programs are built by the wheel of zig, TVM's runtime comes
from the wheels for aarch64. Times measured here mean nothing: each instruction costs about the
same, whatever it is.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from debian import FOLDER, folder_made_once, unpacked

from tvm_blislike.export import bundle, runtime_wheel
from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.hardware import Core

TARGET = Core.named("cortex-a72").target_config()
_SYSROOT = "usr/aarch64-linux-gnu"
_NEEDED = "lib/libstdc++.so.6"
_LIBRARY_PACKAGES = ("libc6-arm64-cross", "libgcc-s1-arm64-cross", "libstdc++6-arm64-cross")
# qemu's cores: features as the board's, so that code for another core ends with SIGILL.
CPUS = ("cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1", "a64fx", "max")


@dataclass(frozen=True)
class Board:
    """A way to start aarch64 programs.

    Parameters
    ----------
    emulator : str
        Path of qemu.
    sysroot : str
        Folder of the aarch64 C library.
    programs : Path
        Folder with blis_rpc and lib/.
    cpu : str
        One of `CPUS`.
    options : tuple of str
        Further options of qemu.
    """

    emulator: str
    sysroot: str
    programs: Path
    cpu: str = "max"
    options: tuple[str, ...] = field(default=())

    def command(self, *program: str | Path) -> list[str]:
        """Return the command that starts a program there."""
        words = (self.emulator, "-L", self.sysroot, "-cpu", self.cpu, *self.options, *program)
        return [str(word) for word in words]

    def run(
        self, *program: str | Path, threads: int | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; raise AssertionError with its messages when it fails."""
        environment = dict(os.environ)
        if threads is not None:
            environment["TVM_NUM_THREADS"] = str(threads)
        done = subprocess.run(
            self.command(*program), capture_output=True, text=True, check=False, env=environment
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{program[0]}: exit {done.returncode}\n{done.stderr[-3000:]}")
        return done

    @contextlib.contextmanager
    def rpc_server(
        self, *options: str, key: str = "emulated", folder: Path | None = None
    ) -> Iterator[int]:
        """Start `blis_rpc` on a free port of loopback; yield the port.

        `folder` is where its sessions keep their files.
        """
        environment = {**os.environ, "TMPDIR": str(folder or tempfile.gettempdir())}
        command = self.command(self.programs / "blis_rpc", "127.0.0.1:0", "--key", key, *options)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as server:
            try:
                assert server.stdout is not None
                banner = server.stdout.readline()
                if "port" not in banner:
                    raise AssertionError(f"blis_rpc does not start: exit {server.wait()}")
                yield int(banner.split("port ")[1].split(",")[0])
            finally:
                server.terminate()


def prepare(cpu: str = "max") -> Board:
    """Return a board, installing what is missing into build/board.

    Raises
    ------
    RuntimeError
        When a package cannot be had; the message says what to install.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    board = Board(_emulator(), _sysroot(), FOLDER / f"programs-{_version_of_sources()}", cpu)
    with folder_made_once(board.programs) as fresh:
        if fresh:
            bundle.write_programs(fresh, TARGET)
    return board


def build(board: Board, source: Path, program: Path) -> None:
    """Build a program of the tests that uses the headers and libraries of the bundles."""
    sources, lib = board.programs / "src", board.programs / "lib"
    command = [*find_builder(TARGET), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-O2"]
    command += ["-fno-exceptions", "-fno-rtti", f"-I{sources}", f"-I{sources / 'include'}"]
    command += ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", str(source)]
    command += [*map(str, sorted(lib.glob("*.so"))), f"-Wl,-rpath,{lib}", "-o", str(program)]
    run_tool(command, f"build {source.name}")


def _version_of_sources() -> str:
    """Return a name for what the programs are built from."""
    digest = hashlib.sha256(repr(runtime_wheel.versions()).encode())
    for path in sorted(path for path in bundle.SOURCES.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _emulator() -> str:
    for name in ("qemu-aarch64", "qemu-aarch64-static"):
        found = shutil.which(name)
        if found:
            return found
    name = "usr/bin/qemu-aarch64-static"
    return str(unpacked("emulator", ["qemu-user-static"], name) / name)


def _sysroot() -> str:
    if (Path("/") / _SYSROOT / _NEEDED).exists():
        return f"/{_SYSROOT}"
    return str(unpacked("libraries", _LIBRARY_PACKAGES, f"{_SYSROOT}/*") / _SYSROOT)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", default="max", choices=CPUS)
    parser.add_argument("--key", default="emulated")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="RPC tracker to register at")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="BUNDLE", help="run a bundle")
    options = parser.parse_args()
    board = prepare(options.cpu)
    if options.run:
        program = Path(options.run[0]) / "blis_run"
        sys.exit(subprocess.run(board.command(program, *options.run), check=False).returncode)
    more = ("--tracker", options.tracker) if options.tracker else ()
    with board.rpc_server(*more, key=options.key) as port:
        print(f"RPC server at 127.0.0.1:{port}, key {options.key}; times mean nothing", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
