"""From an ONNX model to a shared library: compile, run, compare, export, load, run again.

python examples/onnx_end_to_end.py [NETWORK] [IMAGE]
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import zoo

import tvm_blislike


def main(name: str = "resnet18", image: int = 224) -> None:
    """Take one network of the zoo through all steps."""
    model = zoo.build(name, image=image)
    compiled = tvm_blislike.compile(model)
    print(f"compiled {name} for {compiled.core}, {compiled.threads} threads")

    x = np.random.default_rng(0).standard_normal((1, 3, image, image), dtype=np.float32)
    logits = compiled.run({"input": x})["logits"]
    print(f"logits {logits.shape}, the largest is number {logits.argmax()}")
    compare(model, x, logits)

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"{name}.so"
        compiled.export(library)
        again = tvm_blislike.CompiledModel.load(library).run({"input": x})["logits"]
        print(f"{library.name}: {library.stat().st_size / 1e6:.1f} MB")
    print(f"loaded again, it computes the same: {np.array_equal(again, logits)}")


def compare(model: onnx.ModelProto, x: np.ndarray, logits: np.ndarray) -> None:
    """Print how far the result is from that of ONNX Runtime, where that is installed."""
    if not importlib.util.find_spec("onnxruntime"):
        print("onnxruntime is not installed: nothing to compare with")
        return
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(["logits"], {"input": x})
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    print(f"largest difference from ONNX Runtime: {error:.1e} of the largest output")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
