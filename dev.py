#!/usr/bin/env python3
"""Run the demo or the tests from a fresh checkout; needs Python >= 3.10 and nothing else.

    python3 dev.py demo                 compile, run and measure a ResNet-18
    python3 dev.py test [pytest args]   lint, format check and tests

Both install what they need from the package index into .venv, once per change of pyproject.toml.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SCRIPTS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / ("python.exe" if os.name == "nt" else "python")
COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def main(arguments: list[str]) -> int:
    """Dispatch to a command and return its exit code."""
    if sys.version_info < (3, 10):  # noqa: UP036  this file runs before anything is checked
        print(f"Python >= 3.10 is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    commands = {"demo": demo, "test": test}
    if not arguments or arguments[0] not in commands:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        return commands[arguments[0]](arguments[1:])
    except subprocess.CalledProcessError as error:
        print(f"failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return error.returncode or 1


def demo(arguments: list[str]) -> int:
    """Build a ResNet-18, compile it to a library, run that, and compare with other engines."""
    install("bench")
    model, library = ROOT / "build" / "resnet18.onnx", ROOT / "build" / "resnet18.so"
    model.parent.mkdir(exist_ok=True)
    run(PYTHON, ROOT / "examples" / "zoo.py", "resnet18", "-o", model)
    tool = [PYTHON, "-m", "tvm_blislike"]
    run(*tool, "compile", model, "-o", library)
    run(*tool, "run", library, "--repeat", "20")
    run(*tool, "bench", model, "--engines", "blislike,onnxruntime,openvino", *arguments)
    return 0


def test(arguments: list[str]) -> int:
    """Lint, check the format and run the tests."""
    install("test")
    run(PYTHON, "-m", "ruff", "check", ROOT)
    run(PYTHON, "-m", "ruff", "format", "--check", ROOT)
    # Neighbours go to one process as long as the other has work: each makes fewer fixtures.
    run(PYTHON, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *arguments)
    return 0


def install(extra: str) -> None:
    """Make .venv hold the package with `extra`, unless its stamp says that it does."""
    # Linking a library needs a C compiler; the wheel of zig stands in where there is none.
    extras = extra if any(map(shutil.which, COMPILERS)) else f"{extra},link"
    stamp = VENV / f"installed-{extras.replace(',', '-')}"
    current = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode())
    if stamp.is_file() and stamp.read_text() == current.hexdigest():
        return
    installer = create_environment()
    run(*installer, "--editable", f"{ROOT}[{extras}]")
    stamp.write_text(current.hexdigest())


def create_environment() -> list[str | Path]:
    """Create .venv at need and return the command that installs packages into it."""
    print(f"installing into {VENV} ...", flush=True)
    fresh = not works(PYTHON, "-c", "pass")
    if fresh:
        with_pip = importlib.util.find_spec("ensurepip") is not None
        venv.create(VENV, clear=True, symlinks=os.name != "nt", with_pip=with_pip)
    if works(PYTHON, "-m", "pip", "--version"):
        return [PYTHON, "-m", "pip", "install"]
    # Debian splits ensurepip off: let a pip from outside install into the environment.
    for pip in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        if works(*pip, "--python", PYTHON, "--version"):
            return [*pip, "--python", PYTHON, "install"]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", PYTHON]
    if fresh:
        shutil.rmtree(VENV)
    raise SystemExit(
        "this Python has no pip: install the package python3-venv (Debian, Ubuntu), "
        "or python3-pip, or uv, and try again"
    )


def works(*command: str | Path) -> bool:
    """Return whether the command exists and succeeds."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def run(*command: str | Path) -> None:
    """Show and run a command; raise CalledProcessError when it fails."""
    shown = " ".join(str(part).replace(f"{ROOT}{os.sep}", "") for part in command)
    print(f"$ {shown}", flush=True)
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
