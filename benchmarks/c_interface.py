"""The time of a run through the C interface beside that of a `Runner` of Python, in one process.

    python benchmarks/c_interface.py                    three models, 1 and 2 threads
    python benchmarks/c_interface.py -m vgg16 -t 1 --image 64

Both run the same kernels on the same arrays: TVM's thread pool and huge pages for everything in
Python, threads of the library's own and huge pages for all but the weights in C. They take turns;
milliseconds are medians, the ratio is the speed of C beside Python.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from zoo_runs import add_model_option, in_turns, timed, zoo

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "export"))
from c_library import Runner, given, placed

import tvm_blislike
from tvm_blislike import standalone
from tvm_blislike.bench.turns import wait_until_idle

MODELS = ("resnet18", "mobilenet_v2", "squeezenet1_1")


def compare(name: str, image: int, threads: int, seconds: float) -> str:
    """Return a line of the table."""
    proto = zoo.build(name, image=image)
    values = np.random.default_rng(0).standard_normal((1, 3, image, image), dtype=np.float32)
    python = tvm_blislike.compile(proto, threads=threads).runner()
    python.inputs["input"][...] = values
    model = standalone.compile(proto, "native", "net", threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        standalone.package(model, folder)
        c = Runner(Path(folder) / "lib" / "libnet.so", "net", threads)
    wanted = python.run()["logits"]
    found = placed(np.zeros_like(wanted), 0)
    read, written = [given(placed(values, 0))], [given(found)]
    c.run(read, written)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)

    def turn(run: Callable[[], object]) -> float:
        wait_until_idle()
        run()
        return median(timed(run) for _ in range(5))

    runs = (python.run, lambda: c.run(read, written))
    samples = in_turns([lambda run=run: turn(run) for run in runs], seconds, 5)
    ms = [1e3 * median(found) for found in samples]
    c.free()
    cells = f"Python {ms[0]:8.3f}  C {ms[1]:8.3f}  {ms[0] / ms[1]:5.3f}x"
    return f"{name:14s} {image:3d} {threads}t  {cells}"


def main() -> None:
    """Parse the options and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_model_option(parser)
    parser.add_argument("-t", "--threads", type=int, action="append")
    parser.add_argument("--image", type=int, default=224, help="pixels of a side")
    parser.add_argument("--seconds", type=float, default=6, help="of each line")
    options = parser.parse_args()
    for threads in options.threads or (1, 2):
        for name in options.model or MODELS:
            print(compare(name, options.image, threads, options.seconds), flush=True)


if __name__ == "__main__":
    main()
