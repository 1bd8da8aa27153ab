"""Random graphs against ONNX Runtime.

    python tests/fuzz/fuzz.py 0:5000 --jobs 2     # these seeds; ends with a line for each fault
    python tests/fuzz/fuzz.py 4711 --minimize     # this one, down to the nodes that disagree

Each seed is a graph (`cases.py`), a core and an implementation to force (`verdicts.way_of`).
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from pathlib import Path

# As pytest is told to do; spawned processes take the path over.
sys.path.insert(1, str(Path(__file__).parents[1]))

import onnx
from cases import case
from engines import model_of  # noqa: F401  imported by spawned processes, too
from minimize import minimized, tolerances
from verdicts import FAULTS, REFUSED, Verdict, verdict, way_of
from workers import verdicts_of


def judge(seed: int) -> Verdict:
    """Return the verdict of a seed."""
    made = case(seed)
    return verdict(made.model, made.inputs, made.outputs, made.tolerances, way_of(seed))


def explained(seed: int) -> str:
    """Return a seed's verdict, and where it is a fault the nodes that disagree."""
    made, way = case(seed), way_of(seed)

    def attempt(model, inputs, outputs):
        return verdict(model, {t.name: t.value for t in inputs}, outputs, tolerances(outputs), way)

    first = attempt(made.model, made.graph.inputs, made.outputs)
    if first.kind not in FAULTS:
        return f"seed {seed} ({way}): {first.kind} {first.text}"
    model, inputs, found = minimized(made, first.kind, attempt)
    sizes = ", ".join(f"{t.name} {t.dtype}{list(t.shape)}" for t in inputs)
    text = onnx.printer.to_text(model)
    return f"seed {seed} ({way}): {found.kind} {found.text}\ninputs: {sizes}\n{text}"


def main() -> int:
    """Run the command line; the exit code is 1 where a seed shows a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", nargs="+", metavar="SEED|FIRST:END")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minimize", action="store_true", help="show the nodes that disagree")
    parser.add_argument("--log", type=Path, help="append each verdict as a line of JSON")
    options = parser.parse_args()
    seeds = [seed for text in options.seeds for seed in _seeds(text)]
    if options.minimize:
        for seed in seeds:
            print(explained(seed), flush=True)
        return 0
    return _survey(seeds, options.jobs, options.log)


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    return range(int(first), int(end) if colon else int(first) + 1)


def _survey(seeds: list[int], jobs: int, log: Path | None) -> int:
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for done, (seed, found) in enumerate(verdicts_of(seeds, judge, jobs), 1):
        counts[found.kind] += 1
        if found.kind in FAULTS:
            print(f"{seed}: {found.kind}: {found.text[-300:]}", flush=True)
        if log is not None:
            with log.open("a") as file:
                print(json.dumps([seed, found.kind, found.text]), file=file)
        if sys.stderr.isatty() or done % 100 == 0:
            rate = done / (time.monotonic() - start)
            print(f"{done} of {len(seeds)}, {rate:.1f} a second, {dict(counts)}", file=sys.stderr)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    if counts[REFUSED]:
        print("what was refused: --log FILE")
    return int(any(counts[kind] for kind in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
