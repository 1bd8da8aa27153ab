"""What each further thread is worth: models and their layers by 1 and by several threads.

    python benchmarks/scaling.py                               every model of the bars, 2 threads
    python benchmarks/scaling.py -m resnet18 -m vgg16 --layers
    python benchmarks/scaling.py --libraries FOLDER --layers   compiled models are kept there

Each model is compiled for one thread and for several; both libraries are loaded into one process
and take turns. "gain", the last figure, is the time by one thread over the time by several, both of
the lower quartile of all runs: a disturbed run costs several threads more than one. With `--layers`
the same for each kind of layer inside the model, with what the strategy chose for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, quantiles
from typing import Any

from zoo_runs import add_model_option, in_turns, saved, timed

from tvm_blislike import compile as compile_model
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.runtime.compiled import CompiledModel

SECONDS, ROUNDS, RUNS = 4.0, 12, 3
Layer = tuple[str, str]


def libraries(model: Path, folder: Path, threads: int) -> list[Path]:
    """Return the libraries of a model for 1 and for `threads` threads, compiled where missing."""
    found = []
    for count in (1, threads):
        found.append(folder / f"{model.stem}-{count}.so")
        if not found[-1].exists():
            compile_model(model, threads=count, records="none").export(found[-1])
    return found


def measured(paths: list[str], per_layer: bool) -> dict[str, Any]:
    """Return the seconds of each library, and of each call of their layers."""
    models = [CompiledModel.load(path, verify=False) for path in paths]
    inputs = random_inputs(models[0].inputs)
    profiles: list[list[Mapping[str, list[float]]]] = [[] for _ in models]

    def turn(model: CompiledModel, profile: list[Mapping[str, list[float]]]) -> float:
        if per_layer:
            profile += model.profile_runs(inputs, RUNS)
        model.run(inputs)
        return timed(partial(model.run, inputs))

    for model in models:
        model.run(inputs)
    turns = [partial(turn, m, p) for m, p in zip(models, profiles, strict=True)]
    samples = in_turns(turns, SECONDS, ROUNDS)
    rows = [layers(m, p) for m, p in zip(models, profiles, strict=True)] if per_layer else []
    return {"models": [usual(times) for times in samples], "layers": rows}


def usual(seconds: Sequence[float]) -> float:
    """Return the lower quartile of some times."""
    return quantiles(seconds, n=4)[0]


def layers(model: CompiledModel, runs: list[Mapping[str, list[float]]]) -> dict[str, list[Any]]:
    """Return for each workload its calls, the mean time of one, and its choice."""
    about = {x.name: x for x in model.explain().layers}
    calls: dict[str, list[float]] = defaultdict(list)
    chosen: dict[str, str] = {}
    for name in runs[0]:
        layer = about.get(name)
        kind = layer.workload if layer and layer.macs else "all other functions"
        chosen[kind] = choice(layer.config) if layer and layer.macs else ""
        seconds = [usual(each) for each in zip(*(run[name] for run in runs), strict=True)]
        calls[kind] += seconds
    return {
        kind: [len(t), sum(t) if not chosen[kind] else sum(t) / len(t), chosen[kind]]
        for kind, t in calls.items()
    }


def choice(config: Mapping[str, Any]) -> str:
    """Return a configuration in few words."""
    tile = f"F({config['tile_h']},{config['tile_w']}) " if "tile_h" in config else ""
    sizes = " ".join(
        f"{name}={config[name]}"
        for name in ("mc", "nc", "kc", "oh_block", "loop_order", "parallel")
        if config.get(name)
    )
    name = config["implementation"].removeprefix("conv2d_")
    return f"{name} {tile}{config.get('mr', '')}x{config.get('nr', '')} {sizes}"


def line(name: str, one: float, several: float, note: str = "") -> str:
    """Return one row of a table."""
    return f"{name:52s} {one * 1e3:9.3f} {several * 1e3:9.3f}  {one / several:5.2f}  {note}"


def show(result: Mapping[str, Any]) -> None:
    """Print the layers of one model, the slowest first."""
    first, second = result["layers"]
    for kind in sorted(first, key=lambda k: -first[k][0] * first[k][1]):
        if kind in second:
            calls, one, before = first[kind]
            _, several, now = second[kind]
            row = line(f"  {kind} x{calls}", one, several, before)
            print(row + (f" -> {now}" if now != before else ""), flush=True)


def main() -> None:
    """Compile and measure, or, in a process of its own, time some libraries."""
    if sys.argv[1:2] == ["--times"]:
        print(json.dumps(measured(sys.argv[3:], sys.argv[2] == "layers")))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    parser.add_argument("-t", "--threads", type=int, default=2, metavar="N")
    parser.add_argument("--layers", action="store_true", help="print every kind of layer as well")
    parser.add_argument("--libraries", type=Path, metavar="FOLDER")
    parser.add_argument("--build", action="store_true", help="compile only")
    options = parser.parse_args()
    gains = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.libraries or Path(temporary)
        folder.mkdir(exist_ok=True)
        for name, model in saved(options.model):
            paths = [str(path) for path in libraries(model, folder, options.threads)]
            if options.build:
                continue
            what = "layers" if options.layers else "models"
            command = [sys.executable, __file__, "--times", what, *paths]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            result = json.loads(done.stdout)
            print(line(name, *result["models"]), flush=True)
            gains.append(result["models"][0] / result["models"][1])
            if options.layers:
                show(result)
    if gains:
        print(f"geometric mean {geometric_mean(gains):.3f}, lowest {min(gains):.3f}")


if __name__ == "__main__":
    main()
