"""One row by weights of 4 bits (`MatMulNBits`, data of 8 bits), side by side with ONNX Runtime.

    python benchmarks/few_bits.py -t 2     sizes of large language models, on 2 threads

Engines take turns in one process on the same pinned CPUs, each with the whole model of one node;
printed are medians in milliseconds, GB of weights and scales read a second, and the speed relative
to ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from integer_models import turn
from onnx import TensorProto, helper, numpy_helper
from zoo_runs import in_turns

from tvm_blislike.bench.engines import Job, load_engine
from tvm_blislike.hardware import native_core
from tvm_blislike.runtime.threads import cpus_by_use, use_threads

# (n, k, block)
SIZES = ((4096, 4096, 32), (11008, 4096, 32), (4096, 4096, 128), (11008, 4096, 128))
ENGINES = ("blislike", "onnxruntime")
SECONDS, ROUNDS = 6.0, 10


def model(n: int, k: int, block: int) -> onnx.ModelProto:
    """Return the model of one product of `x` with random weights."""
    rng = np.random.default_rng(n + block)
    packed = rng.integers(0, 256, (n, k // block, block // 2), np.uint8)
    scales = rng.uniform(0.001, 0.01, n * k // block).astype("float32")
    sizes = {"K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **sizes)
    values = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size))
        for name, size in (("x", k), ("y", n))
    )
    weights = [numpy_helper.from_array(packed, "b"), numpy_helper.from_array(scales, "s")]
    graph = helper.make_graph([node], "few_bits", [next(values)], [next(values)], weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=sets)


def line(n: int, k: int, block: int, threads: int, path: Path) -> str:
    """Return one row of the table."""
    onnx.save(model(n, k, block), path)
    x = np.random.default_rng(k).standard_normal((1, k)).astype("float32")
    job = Job(str(path), {"x": x}, ["y"], threads, native_core(), records="none")
    engines, outputs = zip(*(load_engine(name, job) for name in ENGINES), strict=True)
    np.testing.assert_allclose(*(each["y"] for each in outputs), rtol=0, atol=1e-2)

    samples = in_turns([partial(turn, engine) for engine in engines], SECONDS, ROUNDS)
    ours, theirs = map(median, samples)
    read = n * k / 2 + 4 * n * k / block
    return (
        f"1x{n}x{k} block {block:3d} {threads}t  blislike {1e3 * ours:.3f}  "
        f"onnxruntime {1e3 * theirs:.3f}  {read / ours / 1e9:.0f} GB/s  {theirs / ours:.2f}x"
    )


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-t", "--threads", type=int, default=1)
    threads = parser.parse_args().threads
    use_threads(threads)
    os.sched_setaffinity(0, cpus_by_use()[:threads])
    with TemporaryDirectory() as folder:
        for size in SIZES:
            print(line(*size, threads, Path(folder) / "model.onnx"), flush=True)


if __name__ == "__main__":
    main()
