"""The suite against other versions of TVM, each file in a process of its own.

    python -m venv OTHER && OTHER/bin/pip install -e .[test]
    OTHER/bin/pip install --no-deps apache-tvm-ffi==0.1.15.post2
    python benchmarks/newer_tvm.py OTHER/bin/python tests/seams tests/schedules tests/passes

`tests/seams` comes first: what breaks elsewhere should break there, or there is a contract missing.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = (
    "from importlib.metadata import version as v;"
    "print('; '.join(f'{n} {v(n)}' for n in ('apache-tvm', 'apache-tvm-ffi')))"
)


def main() -> None:
    """Print a line for each file of tests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("python", help="of the environment with the other versions")
    parser.add_argument("tests", nargs="+", type=Path, help="files and folders")
    parser.add_argument("--seconds", type=float, default=600, help="time of a file")
    args = parser.parse_args()
    subprocess.run([args.python, "-c", VERSIONS], check=True)
    for path in args.tests:
        files = sorted((ROOT / path).rglob("test_*.py")) or [ROOT / path]
        for file in files:
            outcome = _outcome(args.python, file, args.seconds)
            print(f"{file.relative_to(ROOT)!s:48} {outcome}", flush=True)


def _outcome(python: str, file: Path, seconds: float) -> str:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"longer than {seconds:.0f} s"
    if done.returncode < 0:
        return f"crashed: {signal.Signals(-done.returncode).name}"
    return next(reversed(done.stdout.splitlines()), done.stderr[-100:])


if __name__ == "__main__":
    main()
