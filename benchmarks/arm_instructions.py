"""Instructions per inference on ARM, counted in an emulator, beside those of ONNX Runtime.

    python benchmarks/arm_instructions.py                       mobilenet_v2 and resnet18
    python benchmarks/arm_instructions.py -m squeezenet1_1 --image 128
    python benchmarks/arm_instructions.py --quantized           the same models in 8 bits

Both sides run in one thread on the same emulated core, Cortex-A72 for fp32 and Cortex-A76, which
has dot products, for models that ONNX Runtime's quantizer wrote (qemu-user; Debian's `qemu-user`,
as only that one loads plugins): our model by `blis_run`, ONNX Runtime's aarch64 wheel in a Python
for aarch64. A plugin counts every executed instruction; the count of a run with more inferences
less that of one with fewer leaves the inferences alone. It says how much work is done, not how long
it takes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "board"))
import aarch64_python
import debian
import emulated_board
import zoo

import tvm_blislike
from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.onnx.graph_inputs import resolve_inputs
from tvm_blislike.quantize import quantize
from tvm_blislike.quantize.data import random_samples

MODELS = ("mobilenet_v2", "resnet18")
FLOAT_CORE, INTEGER_CORE = "cortex-a72", "cortex-a76"
SAMPLES = 4
_FEW, _MORE = 1, 3
_ORT = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
image = {session.get_inputs()[0].name: numpy.load(sys.argv[2])}
for _ in range(1 + int(sys.argv[3])):
    result = session.run(None, image)[0]
numpy.save(sys.argv[4], result)
"""


class Counter:
    """Runs aarch64 programs on an emulated core and counts their instructions."""

    def __init__(self, folder: Path, core: str) -> None:
        self._folder, self.core = folder, core
        self._plugin = folder / "instruction_counter.so"
        command = find_builder(native_core().target_config())
        source = Path(__file__).with_name("instruction_counter.c")
        run_tool(
            [*command, "-O2", "-shared", "-fPIC", str(source), "-o", str(self._plugin)],
            "build the plugin",
        )
        self._qemu = debian.program("qemu-aarch64", ["qemu-user"], "usr/bin/qemu-aarch64")

    def count(self, sysroot: str | Path, command: list[str], environment: dict[str, str]) -> int:
        """Return the instructions that a command executes."""
        out = self._folder / "count"
        words = [str(self._qemu), "-L", str(sysroot), "-cpu", self.core]
        words += ["-plugin", f"{self._plugin},out={out}", *command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr[-2000:]}")
        return int(out.read_text())


def per_inference(count: Callable[[int], int]) -> int:
    """Return the instructions of one inference; `count` gets the number of inferences."""
    few, more = count(_FEW), count(_MORE)
    return (more - few) // (_MORE - _FEW)


def ours(counter: Counter, model: onnx.ModelProto, image: Path, folder: Path) -> tuple[int, int]:
    """Return our instructions per inference and the model's multiply-adds."""
    board = emulated_board.prepare(counter.core)
    compiled = tvm_blislike.compile(model, target=counter.core, threads=1)
    bundle = compiled.bundle(folder / "bundle").folder
    name = compiled.inputs[0].name

    def count(repeat: int) -> int:
        command = [str(bundle / "blis_run"), str(bundle), "--repeat", str(repeat)]
        command += ["--input", f"{name}={image}", "--output", str(folder)]
        return counter.count(board.sysroot, command, dict(os.environ))

    macs = sum(layer.macs for layer in compiled.explain().layers)
    return per_inference(count), macs


def theirs(counter: Counter, model: onnx.ModelProto, image: Path, folder: Path) -> int:
    """Return ONNX Runtime's instructions per inference."""
    version = importlib.metadata.version("onnxruntime")
    place = emulated_board.FOLDER / f"python-onnxruntime-{version}"
    packages = [f"onnxruntime=={version}", "numpy"]
    root = aarch64_python.prepare(place, packages, Core.named(counter.core))
    onnx.save(model, folder / "model.onnx")
    (folder / "run.py").write_text(_ORT)

    def count(repeat: int) -> int:
        arguments = [folder / "model.onnx", image, str(repeat), folder / "theirs.npy"]
        command = aarch64_python.command(root, folder / "run.py", *arguments)
        return counter.count(root, command, aarch64_python.environment(root))

    return per_inference(count)


def quantized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return a model in 8 bits, with a scale per channel, from random samples."""
    samples = random_samples(resolve_inputs(model, {}), SAMPLES)
    quantize(model, samples, folder / "quantized.onnx")
    return onnx.load(folder / "quantized.onnx")


def row(name: str, size: int | None, core: str, in_bytes: bool) -> str:
    """Return a line of the table."""
    model = zoo.build(name, image=size)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = quantized(model, folder) if in_bytes else model
        counter = Counter(folder, core)
        extent = size or zoo.DEFAULT_IMAGE.get(name, 224)
        image = np.random.default_rng(0).standard_normal((1, 3, extent, extent), dtype=np.float32)
        np.save(folder / "image.npy", image)
        own, macs = ours(counter, model, folder / "image.npy", folder)
        other = theirs(counter, model, folder / "image.npy", folder)
        difference = np.abs(np.load(folder / "logits.npy") - np.load(folder / "theirs.npy")).max()
    return (
        f"{name:16s} {extent:5d} {macs / 1e6:9.1f} {own / 1e6:10.1f} {own / macs:8.4f} "
        f"{other / 1e6:10.1f} {other / macs:8.4f} {own / other:7.3f} {difference:10.1e}"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", action="append", choices=zoo.names(), metavar="NAME")
    parser.add_argument("--image", type=int, help="height and width in pixels")
    parser.add_argument("--quantized", action="store_true", help="models in 8 bits")
    parser.add_argument("--core", choices=emulated_board.CPUS[:-1], help="of the emulator")
    options = parser.parse_args()
    core = options.core or (INTEGER_CORE if options.quantized else FLOAT_CORE)
    version = importlib.metadata.version("onnxruntime")
    kind = "int8" if options.quantized else "fp32"
    print(f"emulated {core}, 1 thread, {kind}; millions per inference; onnxruntime {version}")
    print(
        f"{'model':16s} {'image':>5s} {'MACs':>9s} {'ours':>10s} {'/MAC':>8s} "
        f"{'theirs':>10s} {'/MAC':>8s} {'ratio':>7s} {'difference':>10s}"
    )
    for name in options.model or MODELS:
        print(row(name, options.image, core, options.quantized), flush=True)


if __name__ == "__main__":
    main()
