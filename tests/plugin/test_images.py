"""Images of any height and width from one function: each as ONNX Runtime computes it."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import exact_session
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.errors import InputError, SizesWarning, UsageError

_CHANNELS = 32
_HEIGHTS, _WIDTHS = range(20, 67), range(24, 71)
_SIZES = ((66, 70), (20, 24), (33, 41), (20, 69), (65, 24), (48, 48), (21, 30))


@dataclass(frozen=True)
class Case:
    """A small graph from `x` to `y`; `step` lies between two sizes that it takes."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    weights: dict[str, tuple[int, ...]]
    step: int = 1

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(len(self.name))
        tensors = [_tensor(rng, name, shape) for name, shape in self.weights.items()]
        constants = [
            numpy_helper.from_array(np.array(value), name) for name, value in _CONSTANTS.items()
        ]
        used = {name for node in self.nodes for name in node.input}
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _CHANNELS, "h", "w"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [each for each in (*tensors, *constants) if each.name in used],
        )
        opsets = [helper.make_opsetid("", 13)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def shapes(self) -> dict[str, tuple[range, ...]]:
        return {"h": (_HEIGHTS[:: self.step],), "w": (_WIDTHS[:: self.step],)}


_CONSTANTS = {
    **{f"times{n}": np.array([1, 1, n, n], np.float32) for n in (2, 4, 8)},
    "behind": np.array([0, 0, 0, 0, 0, 0, 1, 1]),
    "around": np.array([0, 0, 2, 1, 0, 0, 3, 1]),
    "five": np.float32(5),
    "one_row": np.array([0, 0, -1]),
    "rows": np.array([2]),
    "last": np.array([-1]),
    "first": np.array([-(2**31)]),
    "back": np.array([-1]),
    "from_end": np.array([-15]),
    "far": np.array([1000]),
    "second": np.array([1]),
    "by_two": np.array([2]),
}


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    values = rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
    return numpy_helper.from_array(values.astype("float32"), name)


def conv(source: str, weights: str, result: str, kernel: int, **attributes: object):
    pad = attributes.pop("pad", kernel // 2 * attributes.get("dilations", [1])[0])
    return helper.make_node(
        "Conv",
        [source, weights],
        [result],
        kernel_shape=[kernel, kernel],
        pads=[pad] * 4,
        **attributes,
    )


def node(kind: str, sources: str, result: str, **attributes: object) -> onnx.NodeProto:
    inputs = ["" if name == "-" else name for name in sources.split()]
    return helper.make_node(kind, inputs, [result], **attributes)


def nearest(times: int) -> onnx.NodeProto:
    ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return node("Resize", f"t - times{times}", "p", mode="nearest", **ways)


_POOL = {"kernel_shape": [3, 3], "pads": [1] * 4}
_FIRST = conv("x", "w3", "t", 3)
_LAST = conv("p", "v3", "y", 3)
_BOTH = {"w3": (48, _CHANNELS, 3, 3), "v3": (40, 48, 3, 3)}

CASES = [
    Case("pointwise", [conv("x", "w", "y", 1)], {"w": (48, _CHANNELS, 1, 1)}),
    Case("strided", [conv("x", "w", "y", 3, strides=[2, 2])], {"w": (48, _CHANNELS, 3, 3)}),
    Case("depthwise", [conv("x", "w", "y", 5, group=_CHANNELS)], {"w": (_CHANNELS, 1, 5, 5)}),
    Case(
        "depthwise strided",
        [conv("x", "w", "y", 3, group=_CHANNELS, strides=[2, 2])],
        {"w": (_CHANNELS, 1, 3, 3)},
    ),
    Case("two layers", [_FIRST, conv("t", "v3", "y", 3)], _BOTH),
    Case(
        "dilated",
        [conv("x", "w3", "t", 3, dilations=[3, 3]), conv("t", "v3", "y", 3, dilations=[6, 6])],
        _BOTH,
    ),
    Case(
        "dilated further than a tile",
        [conv("x", "w3", "t", 3, dilations=[12, 12]), conv("t", "v3", "y", 3, dilations=[18, 18])],
        _BOTH,
    ),
    Case(
        "beside what went in",
        [_FIRST, node("Concat", "t x", "p", axis=1), conv("p", "u", "y", 3)],
        {**_BOTH, "u": (16, 80, 3, 3)},
    ),
    Case(
        "smaller results", [conv("x", "w3", "t", 3, pad=0), conv("t", "v3", "y", 3, pad=0)], _BOTH
    ),
    Case("mean", [_FIRST, node("GlobalAveragePool", "t", "y")], _BOTH),
    Case(
        "mean along the height",
        [conv("x", "w", "t", 1), node("ReduceMean", "t", "m", axes=[2]), node("Mul", "t m", "y")],
        {"w": (12, _CHANNELS, 1, 1)},
    ),
    Case(
        "squeeze and excite",
        [
            _FIRST,
            node("GlobalAveragePool", "t", "m"),
            conv("m", "u", "a", 1),
            node("Sigmoid", "a", "s"),
            node("Mul", "t s", "p"),
            _LAST,
        ],
        {**_BOTH, "u": (48, 48, 1, 1)},
    ),
    Case(
        "largest of a window",
        [_FIRST, node("MaxPool", "t", "p", **_POOL, strides=[2, 2]), _LAST],
        _BOTH,
    ),
    Case(
        "a margin of zeros that is the lowest",
        [
            _FIRST,
            node("Relu", "t", "r"),
            node("MaxPool", "r", "p", **_POOL, strides=[2, 2]),
            conv("r", "v3", "q", 3, strides=[2, 2]),
            node("Concat", "p q", "y", axis=1),
        ],
        _BOTH,
    ),
    Case(
        "averages of whole windows",
        [_FIRST, node("AveragePool", "t", "p", kernel_shape=[2, 2], strides=[2, 2]), _LAST],
        _BOTH,
    ),
    Case("averages that count", [_FIRST, node("AveragePool", "t", "p", **_POOL), _LAST], _BOTH),
    Case("nearest, 2", [_FIRST, nearest(2), _LAST], _BOTH),
    Case("nearest, 8", [_FIRST, nearest(8), _LAST], _BOTH),
    Case(
        "linear",
        [
            _FIRST,
            node(
                "Resize",
                "t - times2",
                "p",
                mode="linear",
                coordinate_transformation_mode="half_pixel",
            ),
            _LAST,
        ],
        _BOTH,
    ),
    Case(
        "transposed",
        [
            _FIRST,
            node("ConvTranspose", "t v", "p", kernel_shape=[2, 2], strides=[2, 2]),
            conv("p", "u", "y", 3),
        ],
        {**_BOTH, "v": (48, 24, 2, 2), "u": (16, 24, 3, 3)},
    ),
    Case(
        "transposed with padding",
        [
            _FIRST,
            node("ConvTranspose", "t v", "p", kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4),
            conv("p", "u", "y", 3),
        ],
        {**_BOTH, "v": (48, 24, 4, 4), "u": (16, 24, 3, 3)},
    ),
    Case(
        "concatenated",
        [
            _FIRST,
            conv("x", "v", "b", 1),
            node("Concat", "t b", "p", axis=1),
            conv("p", "u", "y", 3),
        ],
        {**_BOTH, "v": (32, _CHANNELS, 1, 1), "u": (16, 80, 3, 3)},
    ),
    Case(
        "odd channels",
        [
            conv("x", "w", "t", 3),
            conv("t", "v", "b", 1),
            node("Add", "t b", "p"),
            conv("p", "u", "y", 3),
        ],
        {"w": (21, _CHANNELS, 3, 3), "v": (21, 21, 1, 1), "u": (7, 21, 3, 3)},
    ),
    Case(
        "padded behind a layer",
        [conv("x", "w", "t", 1), node("Pad", "t behind", "p"), conv("p", "u", "y", 2, pad=0)],
        {"w": (24, _CHANNELS, 1, 1), "u": (12, 24, 2, 2)},
    ),
    Case(
        "padded",
        [conv("x", "w", "t", 1), node("Pad", "t behind", "y")],
        {"w": (24, _CHANNELS, 1, 1)},
    ),
    Case("no layer", [node("Relu", "x", "y")], {}),
    Case("from the second row on", [_FIRST, node("Slice", "t second far rows", "p"), _LAST], _BOTH),
    Case("every other row", [_FIRST, node("Slice", "t second far rows by_two", "p"), _LAST], _BOTH),
    Case(
        "zeros around what has none",
        [_FIRST, node("Sigmoid", "t", "s"), node("Pad", "s around", "p"), _LAST],
        _BOTH,
    ),
    Case("zeros around an input's", [node("Sigmoid", "x", "s"), node("Pad", "s around", "y")], {}),
    Case("edges around", [_FIRST, node("Pad", "t around", "p", mode="edge"), _LAST], _BOTH),
    Case(
        "cubic",
        [
            _FIRST,
            node(
                "Resize",
                "t - times2",
                "p",
                mode="cubic",
                coordinate_transformation_mode="half_pixel",
            ),
            _LAST,
        ],
        _BOTH,
    ),
    Case(
        "parts of the channels",
        [_FIRST, helper.make_node("Split", ["t"], ["a", "b"], axis=1), node("Mul", "a b", "y")],
        _BOTH,
    ),
    Case("groups", [conv("x", "w", "y", 3, group=4)], {"w": (64, 8, 3, 3)}),
    Case(
        "as large again",
        [
            conv("x", "w3", "t", 3, strides=[2, 2]),
            nearest(2),
            conv("x", "v", "b", 1),
            node("Add", "p b", "c"),
            conv("c", "v3", "y", 3),
        ],
        {**_BOTH, "v": (48, _CHANNELS, 1, 1)},
        step=2,
    ),
]


def require_right(
    compiled: tvm_blislike.CompiledModel, model: onnx.ModelProto, size: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (10 ** rng.uniform(-2, 2) * rng.standard_normal((1, _CHANNELS, *size))).astype("float32")
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
    for seed, size in enumerate(_SIZES):
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
        node("MaxPool", "h", "i", **_POOL, strides=[2, 2]),
        conv("i", "v3", "y", 3),
    ]
    weights = {**_BOTH, "d": (48, 1, 3, 3), "p1": (48, 48, 1, 1), "p2": (48, 48, 1, 1)}
    case = Case("network", nodes, weights)
    model = case.model()
    return model, tvm_blislike.compile(model, shapes=case.shapes(), threads=2, cache=False)


@examples(30)
@given(st.sampled_from(_HEIGHTS), st.sampled_from(_WIDTHS), st.integers(0, 1000))
def test_any_size(network: tuple, height: int, width: int, seed: int) -> None:
    model, compiled = network
    require_right(compiled, model, (height, width), seed)


def test_what_is_beyond_an_image_does_not_matter(network: tuple) -> None:
    """An image behind one of no numbers, which stay on the canvas beyond it."""
    model, compiled = network
    spoilt = np.full((1, _CHANNELS, _HEIGHTS[-1], _WIDTHS[-1]), np.nan, "float32")
    compiled.run({"x": spoilt})
    require_right(compiled, model, (31, 37), 1)


def test_sizes_outside_are_refused(network: tuple) -> None:
    _, compiled = network
    with pytest.raises(InputError, match=r"compiled for 1x32x20\.\.66x24\.\.70"):
        compiled.run({"x": np.zeros((1, _CHANNELS, 67, 24), "float32")})


def test_a_height_alone_stays_open() -> None:
    model = next(case for case in CASES if case.name == "two layers").model()
    shapes = {"x": (1, _CHANNELS, range(20, 67), 40)}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    for seed, height in enumerate((66, 20, 37)):
        require_right(compiled, model, (height, 40), seed)


@pytest.mark.parametrize("kernel, pads", [((7, 1), (3, 0, 3, 0)), ((1, 7), (0, 3, 0, 3))])
def test_kernels_along_one_axis(kernel: tuple[int, int], pads: tuple[int, ...]) -> None:
    layer = helper.make_node("Conv", ["t", "v"], ["y"], kernel_shape=kernel, pads=pads)
    model = Case("one axis", [_FIRST, layer], {**_BOTH, "v": (16, 48, *kernel)}).model()
    for axis, shape in enumerate([(range(20, 67), 40), (40, range(20, 67))]):
        shapes = {"x": (1, _CHANNELS, *shape)}
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
    layers = {"w": (channels, _CHANNELS, 1, 1), "u": (channels, channels, 1, 1)}
    case = Case("as many", nodes, {**layers, "d": (channels, 1, 5, 5)})
    shapes = {"x": (1, _CHANNELS, range(16, 65, 8), range(16, 65, 8))}
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
    layers = {"w": (first, _CHANNELS, 3, 3), "u": (more, first, 3, 3)}
    model = Case("blocks", nodes, {**layers, "v": (16, first + more, 3, 3)}).model()
    shapes = {"x": (1, _CHANNELS, range(16, 65, 8), range(16, 65, 8))}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    assert len({variant.function for variant in compiled.variants}) == 1
    for seed, size in enumerate(((64, 64), (16, 40), (40, 24))):
        require_right(compiled, model, size, seed)


_HALVING = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}


@pytest.mark.parametrize("threads", [1, 2])
def test_windows_that_end_beyond_an_image(threads: int) -> None:
    """Of an even number of rows the last window has one behind the last."""
    nodes = [
        _FIRST,
        node("MaxPool", "t", "a", **_HALVING),
        node("MaxPool", "a", "b", strides=[1, 1], **_POOL),
        node("AveragePool", "b", "p", **_HALVING),
        _LAST,
    ]
    model = Case("windows", nodes, _BOTH).model()
    shapes = {"x": (1, _CHANNELS, range(16, 65, 8), range(16, 65, 8))}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=threads, cache=False)
    assert len({variant.function for variant in compiled.variants}) == 1
    for seed, size in enumerate(((64, 64), (16, 40), (40, 24), (24, 56))):
        require_right(compiled, model, size, seed)


def test_sizes_in_steps() -> None:
    model = next(case for case in CASES if case.name == "as large again").model()
    shapes = {"x": (1, _CHANNELS, range(16, 97, 16), range(32, 129, 32))}
    compiled = tvm_blislike.compile(model, shapes=shapes, threads=1, cache=False)
    assert len(compiled.variants) == 6 * 4
    for seed, size in enumerate(((96, 128), (16, 32), (48, 96))):
        require_right(compiled, model, size, seed)
    with pytest.raises(InputError, match=r"16\.\.96:16x32\.\.128:32"):
        compiled.run({"x": np.zeros((1, _CHANNELS, 24, 32), "float32")})


_LINEAR = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
REFUSED = [
    ("along an image more than once", [_FIRST, node("Softmax", "t", "y", axis=3)]),
    ("from its beginning on", [_FIRST, node("Slice", "t last first rows back", "y")]),
    ("from its beginning on", [_FIRST, node("Slice", "t from_end far rows", "y")]),
    (
        "by something else than a whole factor",
        [_FIRST, node("Resize", "t - times2", "y", **_LINEAR)],
    ),
    ("puts other numbers than zeros around", [_FIRST, node("Pad", "t behind five", "y")]),
    ("chooses rows of an image", [_FIRST, node("Pad", "t behind", "y", mode="reflect")]),
    ("on another axis", [_FIRST, node("Transpose", "t", "y", perm=[0, 1, 3, 2])]),
    ("grows otherwise than an image", [_FIRST, node("Reshape", "t one_row", "y")]),
]


@pytest.mark.parametrize("reason, nodes", REFUSED, ids=lambda each: str(each)[:40])
def test_what_cannot_be_is_said(reason: str, nodes: Sequence[onnx.NodeProto]) -> None:
    """Where each size cannot have a function of its own."""
    case = Case("refused", nodes, _BOTH)
    with pytest.raises(UsageError, match=f"more than one library takes.*{reason}"):
        tvm_blislike.compile(case.model(), shapes=case.shapes(), threads=1, cache=False)


def test_few_sizes_have_functions_of_their_own() -> None:
    case = Case("softmax along the width", REFUSED[0][1], _BOTH)
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
        image = np.random.default_rng(5).standard_normal((1, _CHANNELS, *size)).astype("float32")
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
