"""What dividing a sweep gives: the longest of N shards against one whole sweep, and their choices.

    python benchmarks/shards.py                           squeezenet1_1, one thread, two shards
    python benchmarks/shards.py -m mobilenet_v2 -t 2      another model, two threads
    python benchmarks/shards.py -o DIR --only whole       one of the steps: the others another time

One after the other, each by itself on the machine: the whole sweep ("whole", which is shard 0 of
1: nobody compares the whole model), each shard, and the whole sweep once more ("again"), each a
process with records of its own; seconds are those of the processes, from start to end. Then the
shards' records are joined as by `cat`, and each layer's choice is compared with that of the whole
sweep: equal, as fast (within half the spread of its repeats, as the library itself decides), or
another. What two whole sweeps do not choose alike, shards need not either.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from zoo_runs import printed, zoo

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.records.book import RecordBook, fastest
from tvm_blislike.records.record import Record
from tvm_blislike.tuning.shard import Shard


def steps(count: int) -> dict[str, str]:
    """Return the shard of each step by its name."""
    shards = [str(Shard(index, count)) for index in range(count)]
    return {"whole": "0/1", **{s.replace("/", "of"): s for s in shards}, "again": "0/1"}


def run(model: Path, threads: int, shard: str, records: Path) -> None:
    """Sweep in a process of its own; what it took is kept beside its records."""
    started = time.perf_counter()
    done = printed(
        "tune", model, "--threads", threads, "--records", records, "--shard", shard, "--json"
    )
    seconds = time.perf_counter() - started
    text = f"{seconds:.1f} {len(done['layers'])} {done['measured']}"
    records.with_suffix(".took").write_text(text)


def took(records: Path) -> tuple[float, int, int]:
    """Return the seconds, layers and measurements of a sweep."""
    seconds, layers, measured = records.with_suffix(".took").read_text().split()
    return float(seconds), int(layers), int(measured)


def choices(records: Path, strategy: Strategy) -> dict[object, tuple[Record, dict]]:
    """Return for each workload the record to follow, and all records by configuration."""
    book, found = RecordBook.open(records), {}
    for workload in {record.workload for record in book_records(book)}:
        page = book.usable(workload, strategy.core, strategy.threads)
        if page:
            predicted = partial(strategy.seconds, workload)
            chosen = fastest(page, predicted, partial(strategy.moving, workload))
            found[workload] = (chosen, {record.config: record for record in page})
    return found


def book_records(book: RecordBook) -> Iterator[Record]:
    """Yield every record of a book."""
    yield from map(Record.from_json, book.lines())


def agreement(one: Path, other: Path, strategy: Strategy) -> str:
    """Return how many layers are computed the same way, and those that are not."""
    left, right = choices(one, strategy), choices(other, strategy)
    assert left.keys() == right.keys(), "the same layers"
    equal, ties, others = 0, [], []
    for workload, (mine, known) in left.items():
        theirs, there = right[workload]
        if mine.config == theirs.config:
            equal += 1
            continue
        fast = [_as_fast(known, mine, theirs), _as_fast(there, theirs, mine)]
        line = f"    {workload}: {_named(mine)} or {_named(theirs)}"
        (ties if any(fast) else others).append(line + (", as fast" if any(fast) else ""))
    head = f"{equal} of {len(left)} equal, {len(ties)} as fast, {len(others)} others"
    return "\n".join([head, *ties, *others])


def _as_fast(known: dict, best: Record, candidate: Record) -> bool:
    """Whether where `best` was chosen the candidate took as long."""
    there = known.get(candidate.config)
    if there is None:
        return False
    spread = max(there.spread_seconds, best.spread_seconds)
    return there.median_seconds - best.median_seconds <= spread / 2


def _named(record: Record) -> str:
    config = record.config
    return f"{config.implementation} {config.mr}x{config.nr} {1e3 * record.median_seconds:.4f} ms"


def report(folder: Path, name: str, threads: int, count: int) -> None:
    """Print what the sweeps took, and where their choices differ."""
    records = {step: folder / f"{step}.jsonl" for step in steps(count)}
    found = {step: took(path) for step, path in records.items()}
    for step, (seconds, layers, measured) in found.items():
        print(
            f"{name} {threads}t {step:6s} {seconds:6.1f} s {layers:3d} layers {measured:4d} meas."
        )
    whole = (found["whole"][0] + found["again"][0]) / 2
    shards = [step for step in found if step not in ("whole", "again")]
    longest = max(found[step][0] for step in shards)
    print(f"longest shard / whole: {longest / whole:.3f}, x {count}: {count * longest / whole:.3f}")
    joined = folder / "joined.jsonl"
    joined.write_bytes(b"".join(records[step].read_bytes() for step in shards))
    strategy = Strategy(native_core(), threads)
    print("shards and whole:", agreement(joined, records["whole"], strategy))
    print("whole and again: ", agreement(records["again"], records["whole"], strategy))


def main() -> None:
    """Run the steps that are missing, and report when all are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="squeezenet1_1", choices=zoo.names())
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    parser.add_argument("-n", "--shards", type=int, default=2, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="Keep the records here.")
    parser.add_argument("--only", action="append", metavar="STEP", help="whole, 0of2, ..., again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        model = zoo.save(options.model, Path(scratch) / f"{options.model}.onnx")
        for step, shard in steps(options.shards).items():
            records = folder / f"{step}.jsonl"
            if step in (options.only or [step]) and not records.with_suffix(".took").exists():
                run(model, options.threads, shard, records)
        if all((folder / f"{step}.took").exists() for step in steps(options.shards)):
            report(folder, options.model, options.threads, options.shards)


if __name__ == "__main__":
    main()
