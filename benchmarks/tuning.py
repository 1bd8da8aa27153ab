"""What tuning takes and gives: every model tuned with the default settings, then compared.

    python benchmarks/tuning.py                           the models of the bars, one thread
    python benchmarks/tuning.py -m resnet50 -t 2          one of them
    python benchmarks/tuning.py --records tuned.jsonl     keep the records, resume from them

Each model is tuned by `tvm-blislike tune` in a process of its own. "untuned" and "tuned" are the
whole model's milliseconds with the model's own choices and with the records', measured in turns at
the end of the sweep; a tuned model that is slower is not kept, its gain is 1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import geometric_mean

from zoo_runs import add_model_option, printed, saved


def tuned(model: Path, threads: int, records: Path) -> dict:
    """Return the JSON of one `tvm-blislike tune`."""
    return printed("tune", model, "--threads", threads, "--records", records, "--json")


def line(name: str, threads: int, result: dict) -> str:
    """Return one row of the table."""
    verdict = result["verdict"]
    kept = "" if not verdict["rejected"] else f"  not kept: {verdict['rejected']}"
    return (
        f"{name:20s} {threads}t  {len(result['layers']):3d} layers  {result['measured']:4d} "
        f"measurements  {result['seconds']:5.0f} s  untuned {verdict['untuned_ms']:8.2f}  "
        f"tuned {verdict['tuned_ms']:8.2f}  gain {verdict['gain']:.3f}x{kept}"
    )


def main() -> None:
    """Tune the models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    parser.add_argument("--records", type=Path, metavar="FILE")
    options = parser.parse_args()
    gains = []
    with tempfile.TemporaryDirectory() as folder:
        records = options.records or Path(folder) / "records.jsonl"
        for name, model in saved(options.model):
            result = tuned(model, options.threads, records)
            gains.append(result["verdict"]["gain"])
            print(line(name, options.threads, result), flush=True)
    print(f"gain: geometric mean {geometric_mean(gains):.3f}x, lowest {min(gains):.3f}x")


if __name__ == "__main__":
    main()
