"""Images of any height and width from one function: each as ONNX Runtime computes it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from image_cases import (
    BOTH,
    CASES,
    CHANNELS,
    FIRST,
    HEIGHTS,
    LAST,
    POOL,
    SIZES,
    WIDTHS,
    Case,
    conv,
    node,
)
from onnx import helper
from onnx_runtime import exact_session
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import InputError, SizesWarning, UsageError


def require_right(
    compiled: tvm_blislike.CompiledModel, model: onnx.ModelProto, size: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (10 ** rng.uniform(-2, 2) * rng.standard_normal((1, CHANNELS, *size))).astype("float32")
    (wanted,) = exact_session(model).run(None, {"x": x})
    found = compiled.run({"x": x})["y"]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-5 * np.abs(wanted).max())


# Of these two threads divide loops in different ways.
_BY_TWO = ("two layers", "depthwise strided", "averages that count", "mean", "transposed")


@pytest.mark.parametrize(
    "case, threads",
    [(case, 1) for case in CASES] + [(case, 2) for case in CASES if case.name in _BY_TWO],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_each_size_as_onnx_runtime_computes_it(case: Case, threads: int) -> None:
    model = case.model()
    compiled = tvm_blislike.compile(model, shapes=case.shapes(), threads=threads, cache=False)
    assert len({variant.function for variant in compiled.variants}) == 1
    # Small ones behind large ones: what these left in memory lies beyond the image.
    for seed, size in enumerate(SIZES):
        require_right(compiled, model, tuple(n - n % case.step for n in size), seed)


@pytest.fixture(scope="module")
def network() -> tuple[onnx.ModelProto, tvm_blislike.CompiledModel]:
    """A network of all kinds of layers, for images of any size."""
    nodes = [
        conv("x", "w3", "a", 3, strides=[2, 2]),
        node("Relu", "a", "b"),
        conv("b", "d", "c", 3, group=48),
        conv("c", "p1", "e", 1),
        node("GlobalAveragePool", "e", "m"),
        conv("m", "p2", "s", 1),
        node("HardSigmoid", "s", "g"),
        node("Mul", "e g", "f"),
        node("Add", "f b", "h"),
        node("MaxPool", "h", "i", **POOL, strides=[2, 2]),
        conv("i", "v3", "y", 3),
    ]
    weights = {**BOTH, "d": (48, 1, 3, 3), "p1": (48, 48, 1, 1), "p2": (48, 48, 1, 1)}
    case = Case("network", nodes, weights)
    model = case.model()
    return model, tvm_blislike.compile(model, shapes=case.shapes(), threads=2, cache=False)


@examples(30)
@given(st.sampled_from(HEIGHTS), st.sampled_from(WIDTHS), st.integers(0, 1000))
def test_any_size(network: tuple, height: int, width: int, seed: int) -> None:
    model, compiled = network
    require_right(compiled, model, (height, width), seed)


def test_what_is_beyond_an_image_does_not_matter(network: tuple) -> None:
    """An image behind one of no numbers, which stay on the canvas beyond it."""
    model, compiled = network
    spoilt = np.full((1, CHANNELS, HEIGHTS[-1], WIDTHS[-1]), np.nan, "float32")
    compiled.run({"x": spoilt})
    require_right(compiled, model, (31, 37), 1)


def test_sizes_outside_are_refused(network: tuple) -> None:
    _, compiled = network
    with pytest.raises(InputError, match=r"compiled for 1x32x20\.\.66x24\.\.70"):
        compiled.run({"x": np.zeros((1, CHANNELS, 67, 24), "float32")})


def test_a_height_alone_stays_open() -> None:
    model = next(case for case in CASES if case.name == "two layers").model()
    shapes = {"x": (1, CHANNELS, range(20, 67), 40)}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    for seed, height in enumerate((66, 20, 37)):
        require_right(compiled, model, (height, 40), seed)


@pytest.mark.parametrize("kernel, pads", [((7, 1), (3, 0, 3, 0)), ((1, 7), (0, 3, 0, 3))])
def test_kernels_along_one_axis(kernel: tuple[int, int], pads: tuple[int, ...]) -> None:
    layer = helper.make_node("Conv", ["t", "v"], ["y"], kernel_shape=kernel, pads=pads)
    model = Case("one axis", [FIRST, layer], {**BOTH, "v": (16, 48, *kernel)}).model()
    for axis, shape in enumerate([(range(20, 67), 40), (40, range(20, 67))]):
        shapes = {"x": (1, CHANNELS, *shape)}
        compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
        for seed, size in enumerate((66, 20, 37)):
            require_right(compiled, model, (size, 40) if axis == 0 else (40, size), seed)


@pytest.mark.parametrize("channels", [32, 36, 64, 72])
def test_as_many_channels_as_an_extent(channels: int) -> None:
    """A mean, (1, 1, 1, 72), is no image of 72 columns, which the canvas has for others."""
    nodes = [
        conv("x", "w", "t", 1),
        node("GlobalAveragePool", "t", "m"),
        conv("m", "u", "s", 1),
        node("Mul", "t s", "p"),
        conv("p", "d", "y", 5, group=channels),
    ]
    layers = {"w": (channels, CHANNELS, 1, 1), "u": (channels, channels, 1, 1)}
    case = Case("as many", nodes, {**layers, "d": (channels, 1, 5, 5)})
    shapes = {"x": (1, CHANNELS, range(16, 65, 8), range(16, 65, 8))}
    model = case.model()
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    for seed, size in enumerate(((64, 64), (16, 40), (40, 24))):
        require_right(compiled, model, size, seed)


@pytest.mark.parametrize("parts", [(96, 32), (48, 16), (64, 64)])
def test_as_many_blocks_of_channels_as_an_extent(parts: tuple[int, int]) -> None:
    """What joins blocks of channels, 6 and 2 of 8, does not pad an image of 8 rows."""
    nodes = [
        conv("x", "w", "a", 3, strides=[8, 8]),
        conv("a", "u", "b", 3),
        node("Concat", "a b", "c", axis=1),
        node("Relu", "c", "r"),
        conv("r", "v", "y", 3),
    ]
    first, more = parts
    layers = {"w": (first, CHANNELS, 3, 3), "u": (more, first, 3, 3)}
    model = Case("blocks", nodes, {**layers, "v": (16, first + more, 3, 3)}).model()
    shapes = {"x": (1, CHANNELS, range(16, 65, 8), range(16, 65, 8))}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    assert len({variant.function for variant in compiled.variants}) == 1
    for seed, size in enumerate(((64, 64), (16, 40), (40, 24))):
        require_right(compiled, model, size, seed)


_HALVING = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}


@pytest.mark.parametrize("threads", [1, 2])
def test_windows_that_end_beyond_an_image(threads: int) -> None:
    """Of an even number of rows the last window has one behind the last."""
    nodes = [
        FIRST,
        node("MaxPool", "t", "a", **_HALVING),
        node("MaxPool", "a", "b", strides=[1, 1], **POOL),
        node("AveragePool", "b", "p", **_HALVING),
        LAST,
    ]
    model = Case("windows", nodes, BOTH).model()
    shapes = {"x": (1, CHANNELS, range(16, 65, 8), range(16, 65, 8))}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=threads, cache=False)
    assert len({variant.function for variant in compiled.variants}) == 1
    for seed, size in enumerate(((64, 64), (16, 40), (40, 24), (24, 56))):
        require_right(compiled, model, size, seed)


def test_sizes_in_steps() -> None:
    model = next(case for case in CASES if case.name == "as large again").model()
    shapes = {"x": (1, CHANNELS, range(16, 97, 16), range(32, 129, 32))}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    assert len(compiled.variants) == 6 * 4
    for seed, size in enumerate(((96, 128), (16, 32), (48, 96))):
        require_right(compiled, model, size, seed)
    with pytest.raises(InputError, match=r"16\.\.96:16x32\.\.128:32"):
        compiled.run({"x": np.zeros((1, CHANNELS, 24, 32), "float32")})


_LINEAR = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
REFUSED = [
    ("along an image more than once", [FIRST, node("Softmax", "t", "y", axis=3)]),
    ("from its beginning on", [FIRST, node("Slice", "t last first rows back", "y")]),
    ("from its beginning on", [FIRST, node("Slice", "t from_end far rows", "y")]),
    (
        "by something else than a whole factor",
        [FIRST, node("Resize", "t - times2", "y", **_LINEAR)],
    ),
    ("puts other numbers than zeros around", [FIRST, node("Pad", "t behind five", "y")]),
    ("chooses rows of an image", [FIRST, node("Pad", "t behind", "y", mode="reflect")]),
    ("on another axis", [FIRST, node("Transpose", "t", "y", perm=[0, 1, 3, 2])]),
    ("grows otherwise than an image", [FIRST, node("Reshape", "t one_row", "y")]),
]


@pytest.mark.parametrize("reason, nodes", REFUSED, ids=lambda each: str(each)[:40])
def test_what_cannot_be_is_said(reason: str, nodes: Sequence[onnx.NodeProto]) -> None:
    """Where each size cannot have a function of its own."""
    case = Case("refused", nodes, BOTH)
    with pytest.raises(UsageError, match=f"more than one library takes.*{reason}"):
        tvm_blislike.compile(case.model(), shapes=case.shapes(), threads=1, cache=False)


def test_few_sizes_have_functions_of_their_own() -> None:
    case = Case("softmax along the width", REFUSED[0][1], BOTH)
    model, shapes = case.model(), {"h": (range(20, 25),), "w": ((24, 25, 29, 30),)}
    with pytest.warns(SizesWarning, match="20 sizes are compiled one by one.*more than once"):
        compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    assert len({variant.function for variant in compiled.variants}) == 20
    require_right(compiled, model, (23, 29), 1)


def test_a_library_and_a_bundle_take_all_sizes(network: tuple, tmp_path: Path) -> None:
    model, compiled = network
    compiled.export(tmp_path / "images.so")
    loaded = tvm_blislike.CompiledModel.load(tmp_path / "images.so")
    require_right(loaded, model, (45, 53), 3)
    folder, x = compiled.bundle(tmp_path / "bundle").folder, tmp_path / "x.npy"
    for size in ((20, 24), (41, 70)):
        image = np.random.default_rng(5).standard_normal((1, CHANNELS, *size)).astype("float32")
        np.save(x, image)
        running = [str(folder / "blis_run"), "--input", f"x={x}", "--output", str(tmp_path / "out")]
        subprocess.run(running, check=True)
        (wanted,) = exact_session(model).run(None, {"x": image})
        found = np.load(tmp_path / "out" / "y.npy")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-5 * np.abs(wanted).max())
    done = subprocess.run([str(folder / "blis_run"), "--shape", "x=1x32x9x9"], capture_output=True)
    assert done.returncode == 5
    assert b"more up to 1x32x66x70 float32" in done.stderr


def test_the_command_line_has_steps(tmp_path: Path) -> None:
    model = next(case for case in CASES if case.name == "strided").model()
    onnx.save(model, tmp_path / "strided.onnx")
    library = tmp_path / "strided.so"
    compiling = ["compile", str(tmp_path / "strided.onnx"), "--threads", "1", "-o", str(library)]
    sizes = ["--shape", "h=16..96:16", "--shape", "w=32..128:32"]
    done = CliRunner().invoke(app, [*compiling, *sizes])
    assert done.exit_code == 0, done.output
    assert "in  x 1x32x16..96:16x32..128:32 float32" in done.output
    assert "out y 1x48x8..48:8x16..64:16 float32" in done.output
    done = CliRunner().invoke(app, ["run", str(library), "--shape", "x=1x32x48x64"])
    assert done.exit_code == 0, done.output
    assert "1x48x24x32" in done.output
    done = CliRunner().invoke(app, [*compiling, "--shape", "h=16..96:0"])
    assert done.exit_code == 2
    assert "32..640:32" in done.output
