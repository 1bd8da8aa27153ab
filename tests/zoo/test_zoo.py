"""The example networks have the sizes their papers state, and run."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import zoo
from onnx import shape_inference
from onnx_runtime import exact_session

# Published numbers of trainable parameters: torchvision's model pages; Keras for mobilenet_v1;
# BVLC's Caffe model for googlenet with 5x5 branches; for inception_v2 the 11,295,240 of PyTorch's
# pretrained BN-Inception less the biases of 10,016 channels that are normalised anyway. The
# ShuffleNet paper gives no exact number: there the multiply-adds below are the check, and this one
# holds the number still.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet50_v1": 25_557_032,
    "resnet152": 60_192_808,
    "resnet152_v1": 60_192_808,
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
    "googlenet": 6_998_552,
    "mobilenet_v1": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_large": 5_483_032,
    "efficientnet_b0": 5_288_548,
    "mnasnet": 4_383_312,
    "shufflenet": 1_865_728,
    "densenet121": 7_978_856,
    "inception_v2": 11_285_224,
    "inception_v3": 23_834_568,
}

# Published multiply-adds of convolutions and linear layers, in millions, at the default image size:
# torchvision's model pages; the papers for mobilenet_v1, shufflenet, resnet50_v1 ("3.8e9") and
# resnet152_v1 ("11.3e9").
MEGA_MACS = {
    "resnet18": 1814,
    "resnet50": 4089,
    "resnet50_v1": 3858,
    "resnet152_v1": 11282,
    "alexnet": 714,
    "vgg16": 15470,
    "squeezenet1_1": 349,
    "mobilenet_v1": 569,
    "mobilenet_v2": 301,
    "mobilenet_v3_large": 217,
    "efficientnet_b0": 386,
    "mnasnet": 314,
    "shufflenet": 137,
    "densenet121": 2834,
    "inception_v3": 5713,
}

# The models of SConv's table 2 (TACO 2023): 393 convolutions, 219 of them pointwise with stride 1.
SCONV_MODELS = {
    "googlenet": (57, 37),
    "inception_v2": (69, 37),
    "resnet18": (20, 0),
    "resnet50_v1": (53, 30),
    "resnet152_v1": (155, 98),
    "squeezenet1_0": (26, 17),
    "vgg16": (13, 0),
}

SMALL_IMAGE = {"inception_v3": 107}  # others: 64; the reductions of inception_v3 need more


def parameter_count(model: onnx.ModelProto) -> int:
    """Count float weights, without running statistics and scalar bounds."""
    statistics = {
        name
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for name in node.input[3:]
    }
    return sum(
        math.prod(weight.dims)
        for weight in model.graph.initializer
        if weight.dims
        and weight.data_type == onnx.TensorProto.FLOAT
        and weight.name not in statistics
    )


def mac_count(model: onnx.ModelProto) -> int:
    """Count multiply-adds of Conv and Gemm: output elements times weights per output channel."""
    inferred = shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*inferred.value_info, *inferred.output]
    }
    weights = {weight.name: weight.dims for weight in model.graph.initializer}
    return sum(
        math.prod(shapes[node.output[0]]) * math.prod(weights[node.input[1]][1:])
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm")
    )


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return exact_session(model, optimized=True).run(["logits"], {"input": x})[0]


def test_every_network_has_a_published_size() -> None:
    assert set(PARAMETERS) == set(zoo.names())


@pytest.mark.parametrize("name", zoo.names())
def test_size_and_validity(name: str) -> None:
    model = zoo.build(name)
    onnx.checker.check_model(model, full_check=True)
    assert parameter_count(model) == PARAMETERS[name]
    if name in MEGA_MACS:
        assert round(mac_count(model) / 1e6) == MEGA_MACS[name]


# VGG's size lies in its linear layers: vgg11 stands for the three.
@pytest.mark.parametrize("name", [name for name in zoo.names() if name not in ("vgg13", "vgg16")])
def test_outputs_are_neither_tiny_nor_huge_and_depend_on_the_input(name: str) -> None:
    image = SMALL_IMAGE.get(name, 64)
    x = np.random.default_rng(0).standard_normal((2, 3, image, image), dtype=np.float32)
    logits = run(zoo.build(name, batch=2, image=image), x)
    assert logits.shape == (2, 1000)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 20
    assert np.abs(logits[0] - logits[1]).max() > 0.05 * logits.std()


def test_symbolic_batch_accepts_any_batch() -> None:
    model = zoo.build("shufflenet", batch="N", image=64)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    x = np.random.default_rng(0).standard_normal((3, 3, 64, 64), dtype=np.float32)
    together = run(model, x)
    assert together.shape == (3, 1000)
    one_by_one = np.concatenate([run(model, part) for part in np.split(x, 3)])
    np.testing.assert_allclose(together, one_by_one, atol=1e-5 * np.abs(together).max())


def test_seed_decides_the_weights() -> None:
    first, same, other = (zoo.build("squeezenet1_1", image=64, seed=seed) for seed in (0, 0, 1))
    assert first.SerializeToString() == same.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


def test_convolutions_are_as_many_as_sconv_counts() -> None:
    def count(name: str) -> tuple[int, int]:
        nodes = [node for node in zoo.build(name, image=64).graph.node if node.op_type == "Conv"]
        notes = [{item.name: list(item.ints) for item in node.attribute} for node in nodes]
        pointwise = [n for n in notes if n["kernel_shape"] == n["strides"] == [1, 1]]
        return len(nodes), len(pointwise)

    counts = {name: count(name) for name in SCONV_MODELS}
    assert counts == SCONV_MODELS
    assert tuple(map(sum, zip(*counts.values(), strict=True))) == (393, 219)


def test_stride_position_tells_resnet50_versions_apart() -> None:
    def strided_kernels(name: str) -> set[int]:
        attributes = [
            {item.name: list(item.ints) for item in node.attribute}
            for node in zoo.build(name, image=64).graph.node
            if node.op_type == "Conv"
        ]
        body = attributes[1:]  # without the 7x7 stem
        return {item["kernel_shape"][0] for item in body if item["strides"] == [2, 2]}

    assert strided_kernels("resnet50_v1") == {1}
    assert strided_kernels("resnet50") == {1, 3}  # 1 is the shortcut


def test_same_padding_is_asymmetric_as_in_tensorflow() -> None:
    model = zoo.build("mobilenet_v1", image=64)
    stem = next(node for node in model.graph.node if node.op_type == "Conv")
    assert next(list(item.ints) for item in stem.attribute if item.name == "pads") == [0, 0, 1, 1]


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="resnet18"):
        zoo.build("resnet17")


def test_command_line_writes_a_loadable_file(tmp_path, capsys) -> None:
    path = tmp_path / "net.onnx"
    zoo.main(["squeezenet1_1", "-o", str(path), "--dynamic-batch", "--image", "64"])
    assert capsys.readouterr().out.strip() == str(path)
    model = onnx.load(path)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims[1:]] == [3, 64, 64]
    assert dims[0].dim_param == "N"
    zoo.main(["--list"])
    assert capsys.readouterr().out.split() == zoo.names()


def test_command_line_without_a_name_explains_itself(capsys) -> None:
    with pytest.raises(SystemExit):
        zoo.main([])
    assert "NAME" in capsys.readouterr().err
