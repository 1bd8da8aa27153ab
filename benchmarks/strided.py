"""Strided, dilated and grouped convolutions: through Winograd's transforms, and direct.

    python benchmarks/strided.py                     3x3 layers of stride 2, one thread
    python benchmarks/strided.py --threads 2
    python benchmarks/strided.py --kind dilated      3x3 layers with dilation 2 and 4
    python benchmarks/strided.py --kind grouped      3x3 layers of several groups, stride 1 and 2
    python benchmarks/strided.py --kind other        kernels of other sizes
    python benchmarks/strided.py --tiles             the best configuration of each tile size, too

Each layer alone, in the layouts of its algorithm, without bias and activation; configurations are
those that the cost model prefers. Sides take turns; a figure is the median over the rounds. "gain"
is the best of all others / Winograd, "chosen" that / what the model takes.
"""

from __future__ import annotations

import argparse
from math import prod

from layers import Layer, choices, random_operands, take_turns

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.runtime.threads import use_threads

_OTHERS = ("conv2d_direct", "conv2d_im2col", "conv2d_grouped")
# ci, co, height and width.
STRIDED = {
    "resnet18/34 56": (64, 128, 56),
    "resnet18/34 28": (128, 256, 28),
    "resnet18/34 14": (256, 512, 14),
    "resnet50 56": (128, 128, 56),
    "resnet50 28": (256, 256, 28),
    "resnet50 14": (512, 512, 14),
    "yolo 208": (64, 128, 208),
    "yolo 104": (128, 256, 104),
    "yolo 52": (256, 512, 52),
    "yolo 26": (512, 1024, 26),
    "odd 97": (72, 88, 97),
    "odd 61": (96, 160, 61),
}
DILATED = {
    "rate 2, 28": (256, 256, 28, 2),
    "rate 2, 65": (128, 128, 65, 2),
    "rate 4, 28": (512, 512, 28, 4),
    "rate 4, 65": (256, 256, 65, 4),
    "rate 2, 33": (512, 512, 33, 2),
}
# Channels of a group, groups, height and width, stride.
GROUPED = {
    "8, 28": (8, 32, 28, 1),
    "8, 14": (8, 64, 14, 1),
    "16, 56": (16, 16, 56, 1),
    "16, 14": (16, 32, 14, 1),
    "24, 28": (24, 8, 28, 1),
    "32, 28": (32, 16, 28, 1),
    "32, 7": (32, 32, 7, 1),
    "48, 28": (48, 6, 28, 1),
    "56, 28": (56, 8, 28, 1),
    "64, 56": (64, 2, 56, 1),
    "64, 14": (64, 8, 14, 1),
    "112, 28": (112, 4, 28, 1),
    "232, 14": (232, 6, 14, 1),
    "16, 56, stride 2": (16, 16, 56, 2),
    "16, 28, stride 2": (16, 32, 28, 2),
    "32, 28, stride 2": (32, 16, 28, 2),
    "48, 28, stride 2": (48, 8, 28, 2),
    "64, 112, stride 2": (64, 2, 112, 2),
    "64, 28, stride 2": (64, 8, 28, 2),
    "112, 28, stride 2": (112, 4, 28, 2),
}
# ci, co, height and width, kernel, stride.
OTHER = {
    "5x5": (64, 96, 56, (5, 5), (2, 2)),
    "7x7": (64, 64, 56, (7, 7), (2, 2)),
    "3x1": (64, 64, 56, (3, 1), (2, 1)),
    "4x4": (64, 128, 64, (4, 4), (2, 2)),
    "1x5": (64, 64, 56, (1, 5), (1, 2)),
    "7x7 of 3": (3, 64, 224, (7, 7), (2, 2)),
}


def workloads(kind: str) -> dict[str, Conv2dWorkload]:
    """Return the layers of a kind."""
    if kind == "strided":
        return {
            name: Conv2dWorkload(1, ci, hw, hw, co, 3, 3, (2, 2), (1,) * 4)
            for name, (ci, co, hw) in STRIDED.items()
        }
    if kind == "dilated":
        return {
            name: Conv2dWorkload(1, ci, hw, hw, co, 3, 3, (1, 1), (d,) * 4, (d, d))
            for name, (ci, co, hw, d) in DILATED.items()
        }
    if kind == "grouped":
        return {
            name: Conv2dWorkload(
                1, ci * g, hw, hw, ci * g, 3, 3, (stride, stride), (1,) * 4, groups=g
            )
            for name, (ci, g, hw, stride) in GROUPED.items()
        }
    return {
        name: Conv2dWorkload(1, ci, hw, hw, co, *k, s, (k[0] // 2, k[1] // 2) * 2)
        for name, (ci, co, hw, k, s) in OTHER.items()
    }


def sides(
    workload: Conv2dWorkload, core: Core, threads: int, tiles: bool
) -> dict[str, tuple[float, Config]]:
    """Return the predicted seconds and the configuration of each side that applies."""
    found = {}
    for name in (*_OTHERS, "conv2d_winograd"):
        for seconds, config in choices(name, workload, core, threads):
            found.setdefault(name, (seconds, config))
            if tiles and name == "conv2d_winograd":
                found.setdefault(f"F({config.tile_h}, {config.tile_w})", (seconds, config))
    return found


def main() -> None:
    """Print a line per layer, and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kind", choices=("strided", "dilated", "grouped", "other"), default="strided"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    core, gains, kept = native_core(), [], []
    use_threads(arguments.threads)
    for name, workload in workloads(arguments.kind).items():
        if arguments.only not in name:
            continue
        offered = sides(workload, core, arguments.threads, arguments.tiles)
        operands = random_operands(workload)
        runs = {
            side: Layer(workload, config, core, *operands, arguments.threads).run
            for side, (_, config) in offered.items()
        }
        seconds = take_turns(runs, arguments.rounds)
        direct = min(seconds[side] for side in _OTHERS if side in seconds)
        phases = seconds.get("conv2d_winograd", float("inf"))
        chosen = min(offered, key=lambda side: offered[side][0])
        gains.append(direct / phases)
        kept.append(direct / seconds[chosen])
        print(f"{name:<16} gain {gains[-1]:.2f}  chosen {kept[-1]:.2f} {chosen}", flush=True)
        for side, (predicted, config) in offered.items():
            blocks = {k: v for k, v in config.changed_fields().items() if isinstance(v, int)}
            print(f"    {side:<16} {1e3 * seconds[side]:7.3f} ms, predicted {1e3 * predicted:7.3f}")
            print(f"        {getattr(config, 'loop_order', '')} {blocks}")
    means = [prod(each) ** (1 / max(1, len(each))) for each in (gains, kept)]
    print(f"geometric means: gain {means[0]:.2f}, chosen {means[1]:.2f}")


if __name__ == "__main__":
    main()
