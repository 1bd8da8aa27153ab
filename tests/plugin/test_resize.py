"""Resize in all its modes: what is written instead computes what ONNX says."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import onnx
import pytest
from effort import every_second
from onnx import helper
from rewrites import (
    close,
    computed,
    one_node,
    operators,
    reference,
    runtime,
    runtime_results,
    several_nodes,
    written,
)

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.rewrites.resize_taps import ResizedAxis, Sampling, taps_of

RNG = np.random.default_rng(11)
MODES = {
    "linear": {"mode": "linear"},
    "cubic": {"mode": "cubic", "cubic_coeff_a": -0.5},
    "cubic inside": {"mode": "cubic", "exclude_outside": 1},
    "linear antialias": {"mode": "linear", "antialias": 1},
    "cubic antialias": {"mode": "cubic", "antialias": 1},
    **{
        f"nearest {how}": {"mode": "nearest", "nearest_mode": how}
        for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    },
}
COORDINATES = "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric".split()


def image(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def resize(
    x: np.ndarray,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    roi: list[float] | None = None,
    opset: int = 19,
    **attributes: object,
) -> onnx.ModelProto:
    """Return the model of one Resize; attributes have ONNX's names."""
    constants = {
        "scales": np.array(scales or [], "float32"),
        "sizes": np.array(sizes or [], "int64"),
        "roi": np.array(roi or [], "float32"),
    }
    given = [name if constants[name].size else "" for name in ("roi", "scales", "sizes")]
    if opset < 13:  # operands could not be left out yet, but be empty
        given = ["roi", "scales", "sizes"][: 3 if sizes else 2]
    node = helper.make_node("Resize", ["x", *given], ["y"], "it", **attributes)
    return one_node(node, x, constants, opset)


def written_out(model: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
    """Return what is written instead, which must be something else."""
    result = written(model, x)
    assert "Resize" not in operators(result)
    return result


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ((1, 2, 9), [1, 1, 1.5]),
        ((1, 2, 9, 7), [1, 1, 0.5, 1.3]),
        ((2, 3, 5, 4, 9), [1, 1, 2.3, 0.7, 0.34]),
        ((2, 3, 7, 5), [2, 1.5, 1, 0.7]),
    ],
    ids=lambda value: "x".join(map(str, value)),
)
def test_scales_that_are_no_ratios_of_sizes(
    mode: str, coordinates: str, shape: tuple[int, ...], scales: list[float]
) -> None:
    # Single precision decides which element is the nearest one to a half: 6.5 / 1.3 - 0.5.
    right = runtime if mode.startswith("nearest") else reference
    x = image(*shape)
    model = resize(x, scales, coordinate_transformation_mode=coordinates, **MODES[mode])
    close(reference(written_out(model, x), x), right(model, x))


HOW = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
ROUNDED = ["half_pixel", "asymmetric", "tf_half_pixel_for_nn"]
SCALES = (0.1, 0.3, 0.6, 0.7, 1.1, 1.2, 1.3, 1.4, 1.6, 2.2, 3.3)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("coordinates", ROUNDED)
def test_rounding_of_scales_is_that_of_onnx_runtime(coordinates: str, how: str) -> None:
    for scale in every_second(SCALES, HOW.index(how) + ROUNDED.index(coordinates)):
        x = image(1, 1, 100)
        request = {"coordinate_transformation_mode": coordinates, "nearest_mode": how}
        model = resize(x, [1, 1, scale], opset=13, mode="nearest", **request)
        with contextlib.suppress(UnsupportedOperatorError):  # of sizes that have two readings
            np.testing.assert_array_equal(computed(model, x), runtime(model, x), f"{scale}")


# The half_pixel_symmetric of ONNX's reference implementation suffers from rounding.
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest round_prefer_floor", "nearest ceil"])
@pytest.mark.parametrize("coordinates", ["pytorch_half_pixel", "half_pixel_symmetric"])
def test_lengths_are_those_of_the_result(mode: str, coordinates: str) -> None:
    x = image(1, 2, 9, 5)
    model = resize(x, [1, 1, 1.5, 0.5], coordinate_transformation_mode=coordinates, **MODES[mode])
    close(reference(written_out(model, x), x), runtime(model, x))


@pytest.mark.parametrize(
    ("coordinates", "scale"),
    [("align_corners", 1.5), ("align_corners", 0.15), ("pytorch_half_pixel", 0.15)],
)
def test_lengths_that_are_fractions_have_two_readings(coordinates: str, scale: float) -> None:
    x = image(1, 1, 9)
    model = resize(x, [1, 1, scale], coordinate_transformation_mode=coordinates, mode="linear")
    with pytest.raises(UnsupportedOperatorError, match=rf"'it'.*with {coordinates}, 9 elements"):
        tvm_blislike.compile(model)


def test_lengths_that_are_whole_but_for_rounding_have_one() -> None:
    x = image(1, 1, 10)
    model = resize(x, [1, 1, 1.1], coordinate_transformation_mode="align_corners", mode="linear")
    close(computed(model, x), reference(model, x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if c != "half_pixel_symmetric"])
@pytest.mark.parametrize("sizes", [[1, 2, 13, 4], [1, 2, 3, 15], [3, 4, 9, 8]], ids=str)
def test_sizes(mode: str, coordinates: str, sizes: list[int]) -> None:
    x = image(1, 2, 9, 8)
    model = resize(x, sizes=sizes, coordinate_transformation_mode=coordinates, **MODES[mode])
    result = written(model, x)
    close(reference(result, x), reference(model, x))


@pytest.mark.parametrize("mode", [mode for mode in MODES if "inside" not in mode])
@pytest.mark.parametrize("sizes", [[1, 2, 7, 5], [1, 2, 1, 12]], ids=str)
def test_crops(mode: str, sizes: list[int]) -> None:
    x = image(1, 2, 6, 9)
    model = resize(
        x,
        sizes=sizes,
        roi=[0, 0, 0.25, -0.125, 1, 1, 0.875, 1.25],
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.5,
        **MODES[mode],
    )
    expected = reference(model, x) if sizes[2] > 1 else None
    result = reference(written_out(model, x), x)
    assert (result == 7.5).any() and (result != 7.5).any()
    if expected is not None:
        close(result, expected)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [-1, 1]], ids=str)
@pytest.mark.parametrize("mode", ["linear", "nearest floor"])
def test_axes_and_aspect_ratio(policy: str, axes: list[int], mode: str) -> None:
    x = image(2, 4, 6, 9)
    attributes = {"axes": axes, "keep_aspect_ratio_policy": policy, **MODES[mode]}
    model = resize(x, sizes=[7, 8], opset=18, **attributes)
    # ONNX's reference implementation does not know negative axes.
    plain = resize(x, sizes=[7, 8], opset=18, **attributes | {"axes": [a % 4 for a in axes]})
    close(reference(written(model, x), x), reference(plain, x))


# What the importer reads right stays one operator, which fuses and follows layouts.
@pytest.mark.parametrize(
    "given",
    [
        {"scales": [1, 1, 2, 2], "mode": "nearest", "nearest_mode": "floor"},
        {"scales": [1, 1, 0.5, 2], "mode": "nearest"},
        {"scales": [1, 1, 2, 3], "mode": "linear"},
        {"sizes": [1, 2, 13, 5], "mode": "cubic"},
        {"sizes": [13, 5], "axes": [2, 3], "mode": "linear"},
    ],
    ids=str,
)
def test_stays_one_operator(given: dict[str, object]) -> None:
    x = image(1, 2, 6, 4)
    coordinates = "asymmetric" if given["mode"] == "nearest" else "half_pixel"
    model = resize(x, coordinate_transformation_mode=coordinates, **given)
    assert operators(written(model, x)) == ["Resize"]
    close(computed(model, x), reference(model, x))


def smooth_cases() -> list[tuple[np.ndarray, dict[str, object]]]:
    """Return inputs and requests that stay one operator, of one to three axes."""
    sizes = {(1, 2, 9): [14], (1, 2, 9, 6): [5, 13], (1, 2, 3, 4, 5): [5, 3, 9]}
    modes = itertools.product(("linear", "cubic"), COORDINATES, sizes)
    return [
        (
            image(*shape),
            {
                "sizes": [1, 2, *sizes[shape]],
                "mode": mode,
                "coordinate_transformation_mode": coordinates,
            },
        )
        for mode, coordinates, shape in modes
        if coordinates != "half_pixel_symmetric"
    ]


def stepped_cases() -> list[tuple[np.ndarray, dict[str, object]]]:
    """Return the same for nearest: powers of two, large sizes too."""
    rounding = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    coordinates = ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ratios = [(1000, 8), (900, 2), (77, 64), (4, 2)]
    return [
        (
            image(1, 1, old),
            {
                "sizes": [1, 1, new],
                "mode": "nearest",
                "nearest_mode": how,
                "coordinate_transformation_mode": where,
            },
        )
        for how, where, (size, times) in itertools.product(rounding, coordinates, ratios)
        for old, new in ((size, size * times), (size * times, size))
    ]


@pytest.mark.parametrize("cases", [smooth_cases, stepped_cases], ids=["smooth", "stepped"])
def test_what_stays_is_read_right(cases) -> None:
    chosen = cases()
    models = [resize(x, **request) for x, request in chosen]
    nodes, constants = [], {}
    for index, model in enumerate(models):
        assert operators(written(model, chosen[index][0])) == ["Resize"]
        node = model.graph.node[0]
        constants[f"sizes_{index}"] = np.array(chosen[index][1]["sizes"])
        node.input[:] = [f"x_{index}", "", "", f"sizes_{index}"]
        node.output[:] = [f"y_{index}"]
        nodes.append(node)
    inputs = {f"x_{index}": x for index, (x, _) in enumerate(chosen)}
    results = tvm_blislike.compile(several_nodes(nodes, inputs, constants)).run(inputs)
    for index, (x, request) in enumerate(chosen):
        close(results[f"y_{index}"], reference(resize(x, **request), x))


WRONG_BEFORE = {
    "linear": {"scales": [1, 1, 1.5, 0.5], "mode": "linear"},
    "cubic": {"scales": [1, 1, 0.5, 1.5], "mode": "cubic"},
    "nearest": {"scales": [1, 1, 1.5, 1.5], "mode": "nearest"},
    "antialias": {"sizes": [1, 2, 4, 5], "mode": "linear", "antialias": 1},
    "channels": {"scales": [1, 3, 2, 2], "mode": "nearest"},
    "symmetric": {
        "scales": [1, 1, 1.5, 2],
        "mode": "linear",
        "coordinate_transformation_mode": "half_pixel_symmetric",
    },
    "corners of one": {
        "sizes": [1, 2, 1, 1],
        "mode": "linear",
        "coordinate_transformation_mode": "align_corners",
    },
}


@pytest.mark.parametrize("name", WRONG_BEFORE)
def test_compiles_to_what_it_says(name: str) -> None:
    x = image(1, 2, 9, 7)
    model = resize(x, **WRONG_BEFORE[name])
    close(computed(model, x), reference(model, x))


def test_rounding_errors_of_single_precision_make_no_steps() -> None:
    x = image(1, 1, 1000)
    model = resize(x, sizes=[1, 1, 7000], mode="nearest", nearest_mode="ceil")
    np.testing.assert_array_equal(computed(model, x), reference(model, x))


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_operator_sets(opset: int) -> None:
    x = image(1, 2, 9, 7)
    model = resize(x, [1, 1, 1.5, 0.7], opset=opset, mode="linear")
    close(reference(written_out(model, x), x), reference(model, x))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 1.5, 1.5], [1, 1, 0.5, 0.7]], ids=str)
def test_the_first_resize(mode: str, scales: list[float]) -> None:
    x = image(1, 2, 9, 8)
    node = helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)
    model = one_node(node, x, {"scales": np.array(scales, "float32")}, opset=10)
    close(computed(model, x), runtime(model, x))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("scales", [[1.0, 1, 2, 3], [1.0, 1, 1.5, 2.6]], ids=str)
def test_upsample(mode: str, opset: int, scales: list[float]) -> None:
    x = image(1, 2, 9, 8)
    if opset == 7:
        node = helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=scales)
    else:
        node = helper.make_node("Upsample", ["x", "scales"], ["y"], mode=mode)
    model = one_node(node, x, {"scales": np.array(scales, "float32")}, opset)
    close(computed(model, x), runtime(model, x))


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int32", "int64"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_data_types(dtype: str, mode: str) -> None:
    x = (RNG.uniform(0, 250, (1, 2, 9, 7))).astype(dtype)
    if dtype == "int64":
        x += 1 << 40  # more digits than single precision has
    model = resize(x, [1, 1, 1.5, 0.8], mode=mode)
    result = reference(written_out(model, x), x)
    assert result.dtype == dtype
    expected = reference(
        resize(x.astype("float64"), [1, 1, 1.5, 0.8], mode=mode), x.astype("float64")
    )
    whole = np.issubdtype(result.dtype, np.integer)
    expected = np.floor(expected + 1e-9) if whole else expected
    np.testing.assert_allclose(result, expected, rtol=1e-3 if dtype == "float16" else 1e-12)


def test_branches() -> None:
    x = image(1, 2, 9)
    scales = np.array([1, 1, 1.5], "float32")
    branches = {}
    for name, mode in (("then", "linear"), ("else", "nearest")):
        # Both branches name their tensors alike, with different shapes.
        nodes = [
            helper.make_node("Concat", ["x"] * (1 if name == "then" else 2), ["inner"], axis=2),
            helper.make_node("Resize", ["inner", "", "scales"], [name], mode=mode),
            helper.make_node("Identity", [name], [f"{name}_result"]),
        ]
        weights = [onnx.numpy_helper.from_array(scales, "scales")]
        result = onnx.ValueInfoProto(name=f"{name}_result")
        graph = helper.make_graph(nodes, name, [], [result], weights)
        branches[f"{name}_branch"] = graph
    node = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = {"c": np.array(True), "x": x}
    model = several_nodes([node], inputs)
    changed = written(model, x)
    inner = [[n.op_type for n in a.g.node] for a in changed.graph.node[0].attribute]
    assert not any("Resize" in names for names in inner)
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": x}
        expected, result = (
            onnx.reference.ReferenceEvaluator(m).run(None, feeds)[0] for m in (model, changed)
        )
        close(result, expected)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"scales": [1, 1, 0.01, 1]}, "no elements"),
        ({"scales": [1, 1, 2]}, "neither scales nor sizes for each"),
        ({"scales": [1, 1, 0.7, 1]}, "10 elements scaled by 0.69.* are 6 or, in single .* 7"),
        ({"sizes": [1, 1, 4, 4], "mode": "nearest", "antialias": 1}, "antialias"),
        ({"sizes": [1, 1, 4, 4], "keep_aspect_ratio_policy": "none"}, "none"),
        ({"sizes": [1, 1, 3, 4], "nearest_mode": "up"}, "up"),
        ({"sizes": [1, 1, 4, 4], "coordinate_transformation_mode": "tf_crop_and_resize"}, "roi"),
    ],
    ids=str,
)
def test_refusals_name_the_reason(request_: dict[str, object], reason: str) -> None:
    x = image(1, 1, 10, 8)
    with pytest.raises(UnsupportedOperatorError, match=rf"Resize \(node 'it'\): .*{reason}"):
        tvm_blislike.compile(resize(x, **request_))


def test_integers_are_not_interpolated_by_cubics() -> None:
    x = np.ones((1, 1, 4, 4), "uint8")
    with pytest.raises(UnsupportedOperatorError, match="cubic interpolation of integers"):
        tvm_blislike.compile(resize(x, [1, 1, 2, 2], mode="cubic"))


def test_operators_of_microsoft_keep_shapes() -> None:
    x = image(1, 2, 9, 9)
    gelu = helper.make_node("Gelu", ["x"], ["active"], domain="com.microsoft")
    node = helper.make_node("Resize", ["active", "", "scales"], ["y"], mode="linear")
    model = several_nodes([gelu, node], {"x": x}, {"scales": np.array([1, 1, 1.5, 1.5], "float32")})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    close(tvm_blislike.compile(model).run({"x": x})["y"], runtime_results(model, x)[1])


def test_scales_of_run_time_are_refused_by_name() -> None:
    x, scales = image(1, 1, 4, 4), np.ones(4, "float32")
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], "it")
    model = several_nodes([node], {"x": x, "scales": scales})
    with pytest.raises(UnsupportedOperatorError, match=r"'it'.*'scales' is known at run time only"):
        tvm_blislike.compile(model)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("antialias", [False, True])
def test_weights_add_up_to_one(mode: str, scale: float, antialias: bool) -> None:
    axis = ResizedAxis(20, int(20 * scale), scale)
    taps = taps_of(axis, Sampling(mode=mode, antialias=antialias))
    np.testing.assert_allclose(taps.weights.sum(axis=1), 1)
    np.testing.assert_allclose(taps.matrix(20).sum(axis=0), 1)
    assert taps.matrix(20).shape == (20, axis.new_size)
