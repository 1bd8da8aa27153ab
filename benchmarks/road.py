"""The modules and functions that the compilation of one Conv + Relu enters.

    python benchmarks/road.py                              for this machine, one thread
    python benchmarks/road.py --target zen3 --threads 2
    python benchmarks/road.py --list                       each file with its functions

What a reader of the code has to follow. Counted are the files of the product, and its functions
by file and line, whatever thread runs them. Lambdas, comprehensions and generator expressions are
parts of the function that holds them. What runs while a module is imported does not count, nor
what an `import` inside a function runs.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_blislike

# The packages that lie beside `tvm_blislike/` are installed as subpackages of it.
ROOMS = ("tvm_blislike", "schedules", "microkernels", "cost_models", "hardware")
ROOT = Path(__file__).resolve().parents[1]


def conv_relu() -> onnx.ModelProto:
    """Return a model of one 3x3 convolution of 64 channels of 56x56, and its Relu."""
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3), dtype=np.float32)
    image, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64, 56, 56)) for name in "xy"
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "conv_relu", [image], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class Road:
    """Collects the functions that are entered between `start` and `stop`."""

    def __init__(self) -> None:
        self.entered: set[CodeType] = set()
        self._importing = threading.local()

    def start(self) -> None:
        """Begin, in this thread and in those that are started from now on."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def stop(self) -> None:
        """End, in this thread and for those that are started from now on."""
        sys.setprofile(None)
        threading.setprofile(None)

    def by_file(self) -> dict[str, list[str]]:
        """Return the names of the product's functions, in order of lines, by file."""
        found = defaultdict(list)
        for code in sorted(self.entered, key=lambda code: code.co_firstlineno):
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS:
                found[str(path.relative_to(ROOT))].append(code.co_name)
        return dict(sorted(found.items()))

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        code, depth = frame.f_code, getattr(self._importing, "depth", 0)
        if code.co_name == "_find_and_load" and "importlib" in code.co_filename:
            self._importing.depth = depth + {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not depth and not code.co_name.startswith("<"):
            self.entered.add(code)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print each file and its functions")
    options = parser.parse_args()
    model, road = conv_relu(), Road()
    road.start()
    tvm_blislike.compile(model, options.target, threads=options.threads)
    road.stop()
    files = road.by_file()
    for path, names in files.items() if options.list else ():
        print(f"{path} ({len(names)}): {', '.join(names)}")
    print(f"{len(files)} modules, {sum(map(len, files.values()))} functions")


if __name__ == "__main__":
    main()
