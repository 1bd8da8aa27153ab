"""How far apart several probes of this machine are, each in a process of its own.

    python benchmarks/probe_spread.py
    python benchmarks/probe_spread.py --runs 5 --quick

"range" is the largest minus the smallest, as a share of the median; of the two costs of loads,
which may be 0, the difference itself. "s" is what a whole command takes, TVM's import included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from tvm_blislike.hardware.probed import CACHE_FACTS, FACTS


def probe(quick: bool) -> tuple[dict[str, Any], float]:
    """Run the command; return what it prints as JSON and its seconds."""
    command = [sys.executable, "-m", "tvm_blislike", "probe", "--json", *["--quick"] * quick]
    # Nothing is kept: what is measured here is no user's.
    environment = {**os.environ, "TVM_BLISLIKE_PROBE": "0"}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - started


def facts(core: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield name and value of each measured fact of a core."""
    yield from ((name, core[name]) for name in FACTS)
    for cache in core["caches"]:
        for name in CACHE_FACTS:
            if cache[name] is not None:
                yield f"L{cache['level']} {name}", cache[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    results = []
    for _ in range(options.runs):
        result, seconds = probe(options.quick)
        results.append(dict(facts(result["core"])) | {"s": seconds})
        print(f"{seconds:5.1f} s", *result["notes"], sep="; ", flush=True)
    for name in results[0]:
        values = [result[name] for result in results]
        low, high = min(values), max(values)
        apart = (
            f"{high - low:.2f}" if "load_cycles" in name else f"{(high - low) / median(values):.1%}"
        )
        print(f"{name:24s} range {apart:>6s}  ", *(f"{value:8.4g}" for value in values))


if __name__ == "__main__":
    main()
