"""Predicted beside measured time, by algorithm and layer, with stated and with probed facts.

    python benchmarks/calibration.py --records calibration.jsonl
    python benchmarks/calibration.py --records calibration.jsonl --isa avx2 -t 1 --layers 6
    python benchmarks/calibration.py --records calibration.jsonl --only-report --facts core.toml

Layers of four networks and odd sizes of none: of each algorithm that applies the model's choice and
others at equal steps behind it, built into one library, which take turns with the caches as a model
leaves them. Measurements are kept in the file of records; the same command goes on from there, and
the predictions are always those of the present models, for each of several descriptions of the
core: as recognized ("native"), as `tvm-blislike probe` measures it ("probed"), or in files.

"ratio" is the geometric mean of predicted over measured time, "spread" the factor within which two
thirds of the candidates lie around it, "rank" the mean over the layers of Spearman's correlation of
predicted and measured times of all candidates of a layer, "most" that of every other repeat and the
others, "choice" the mean of the fastest candidate's time over that of the one with the smallest
prediction. The report is kept in
`benchmarks/results/calibration-KIND.txt`, one file for each kind of machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from calibration_layers import LAYERS
from calibration_report import samples, table

from tvm_blislike import Workload
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.roofline import kernel_seconds
from tvm_blislike.hardware import ISAS, Core, native_core
from tvm_blislike.hardware.machine import read_machine
from tvm_blislike.model.config import Config
from tvm_blislike.probe import measure_peak_gflops, probe
from tvm_blislike.records import files
from tvm_blislike.records.record import Record
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.measure import LocalRunner, Measured, Outcome
from tvm_blislike.tuning.timing import timing_for

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
# Layers that are built at a time, on all CPUs.
TOGETHER = 6
# Share of the highest FMA peak seen that leaves a measurement undisturbed; how often to try.
UNDISTURBED = 0.97
ATTEMPTS = 3


def machine_core(isa: str) -> Core:
    """Return the present machine's core without all wider instruction sets than one of them."""
    machine, needless = read_machine(), set()
    for other in ISAS.values():
        if other.name != isa and other.vector_bytes > ISAS[isa].vector_bytes:
            needless |= other.flags - ISAS[isa].flags
            needless |= {feature.flag for feature in other.features} - ISAS[isa].flags
    return native_core(replace(machine, flags=machine.flags - needless))


def machine_cores(wanted: Sequence[str] | None) -> list[Core]:
    """Return the present machine's core as one of each wanted instruction set, by default of all.

    Raises
    ------
    SystemExit
        When the machine lacks one that was asked for.
    """
    cores = {isa: machine_core(isa) for isa in wanted or ISAS}
    lacking = [isa for isa, core in cores.items() if core.isa.name != isa]
    if wanted and lacking:
        raise SystemExit(f"{native_core().name} has no {lacking[0]}: leave out --isa {lacking[0]}")
    return [core for isa, core in cores.items() if isa not in lacking]


def configs_of(workload: Workload, core: Core, threads: int, per: int) -> tuple[Config, ...]:
    """Return, of each algorithm, the choice and others of `exhaustive_search` behind it."""
    offers = Strategy(core, threads).offers(workload)
    kinds: dict[str, dict[tuple[str | int, ...], tuple[Config, float]]] = defaultdict(dict)
    for config, seconds in sorted(offers, key=lambda offer: offer[1]):
        kinds[config.implementation].setdefault(config.kind, (config, seconds))
    configs = []
    for found in kinds.values():
        configs += at_equal_steps([config for config, _ in found.values()], per)
    return tuple(configs)


def at_equal_steps(entries: Sequence[T], count: int) -> list[T]:
    """Return so many entries, the first and the last among them."""
    steps = np.linspace(0, len(entries) - 1, min(count, len(entries)))
    return [entries[round(step)] for step in steps]


def measure(
    core: Core, threads: int, layers: Sequence[Workload], per: int, path: Path, end: float
) -> None:
    """Measure the layers that the file of records lacks, until the end of the budget."""
    known = {(r.workload, r.core, r.threads) for r in read(path)}
    missing = [w for w in layers if (w, core.name, threads) not in known]
    if not missing:
        return
    groups = [CandidateGroup(w, configs_of(w, core, threads, per), core, threads) for w in missing]
    with closing(LocalRunner(core, threads, timing_for(core))) as runner:
        for some in (groups[i : i + TOGETHER] for i in range(0, len(groups), TOGETHER)):
            if time.monotonic() > end:
                return
            for group, outcomes in undisturbed(runner, some):
                files.append(path, (record_of(group, outcome) for outcome in outcomes))
            done = ", ".join(str(group.workload) for group in some)
            print(f"{core.name}, {threads} thread(s): {done}", file=sys.stderr, flush=True)


def undisturbed(runner: LocalRunner, groups: Sequence[CandidateGroup]) -> Measured:
    """Measure groups; again those with the FMA peak lower before or after than at any time.

    Then something else takes a part of the machine.
    """
    core, threads, best = groups[0].core, groups[0].threads, 0.0
    for attempt in range(ATTEMPTS):
        disturbed = []
        before = measure_peak_gflops(core, threads)
        for group, outcomes in runner.measure(groups):
            after = measure_peak_gflops(core, threads)
            best = max(best, before, after)
            if min(before, after) >= UNDISTURBED * best or attempt == ATTEMPTS - 1:
                yield group, outcomes
            else:
                disturbed.append(group)
            before = after
        groups = disturbed


def record_of(group: CandidateGroup, outcome: Outcome) -> Record:
    """Return the record of what came of a candidate."""
    core, o = group.core, outcome
    estimate = get_implementation(o.config.implementation).estimate(
        group.workload, o.config, core, group.threads
    )
    return Record(
        workload=group.workload,
        config=o.config,
        core=core.name,
        facts=core.name,
        target=core.target_config(group.threads),
        threads=group.threads,
        seconds=o.seconds,
        predicted_seconds=kernel_seconds(estimate, core),
        error=o.error,
        status=o.status,
        reason=o.reason,
    )


def read(path: Path) -> list[Record]:
    """Return the records of a file, none of a missing one."""
    return files.read(path)[0] if path.exists() else []


def descriptions(core: Core, facts: Sequence[str]) -> Iterator[tuple[str, Core]]:
    """Yield the wanted descriptions of a core with their names."""
    for name in facts:
        if name == "native":
            yield name, core
        elif name == "probed":
            yield name, probe(core).to_core()
        else:
            read_core = Core.from_toml(name)
            if read_core.isa is core.isa:
                yield Path(name).stem, read_core


def report(cores: Iterable[Core], threads: Sequence[int], path: Path, facts: Sequence[str]) -> str:
    """Return all tables."""
    lines = []
    for core in cores:
        for name, described in descriptions(core, facts):
            for count in threads:
                records = [r for r in read(path) if r.core == core.name and r.threads == count]
                found = samples(records, described)
                if found:
                    lines += table(f"{core.isa.name}, {count} thread(s), {name} facts", found)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, required=True, metavar="FILE")
    parser.add_argument("--isa", action="append", choices=[*ISAS], help="by default all it has")
    parser.add_argument("-t", "--threads", type=int, action="append", metavar="N")
    parser.add_argument("--layers", type=int, metavar="N", help="only N of them, at equal steps")
    parser.add_argument("--per", type=int, default=3, metavar="N", help="candidates an algorithm")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS")
    parser.add_argument("--facts", action="append", metavar="native|probed|FILE.toml")
    parser.add_argument("--only-report", action="store_true", help="measure nothing")
    parser.add_argument("--keep", action="store_true", help="keep the report among the results")
    options = parser.parse_args()
    layers = at_equal_steps(LAYERS, options.layers or len(LAYERS))
    here = native_core()
    cores = machine_cores(options.isa)
    threads = options.threads or [1, min(2, here.cores)]
    end = time.monotonic() + options.budget
    for core in () if options.only_report else cores:
        for count in threads:
            measure(core, count, layers, options.per, options.records, end)
    kind = here.name.removeprefix("native-")
    text = report(cores, threads, options.records, options.facts or ["native", "probed"])
    print(text, end="")
    if options.keep:
        head = f"{kind}, {here.cores} core(s): {read_machine().brand}\n"
        (RESULTS / f"calibration-{kind}.txt").write_text(head + text)


if __name__ == "__main__":
    main()
