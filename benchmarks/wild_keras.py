"""Networks of Keras as tf2onnx writes them, with and without its optimizer: channels last.

    python benchmarks/wild_keras.py          writes all of them to build/wild/exports/
    python benchmarks/wild_keras.py tcn      one of them

This needs tensorflow-cpu and tf2onnx, which may lie in an environment of their own, and nothing of
ours: `wild.py` measures the files that are there. Weights are random, of a seed. Without the
optimizer ("unmoved") permutations stand around every convolution, as older converters leave them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

EXPORTERS = ("tf2onnx", "unmoved")
_SEED = 3
_OPSET = 17
# Of the deviation that keeps the size of activations behind a ReLU: deep sums stay finite.
_LESS = 0.9


def _application(name: str, size: int = 224) -> Callable[[], Any]:
    """A network of Keras for an image."""

    def make() -> Any:
        from tensorflow import keras

        shape = (size, size, 3)
        network = getattr(keras.applications, name)
        return network(weights=None, classifier_activation=None, input_shape=shape)

    return make


def _unet() -> Any:
    from tensorflow import keras

    layers = keras.layers
    taken = x = keras.Input((128, 128, 3))
    skips = []
    for channels in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", activation="elu")(x)
            x = layers.BatchNormalization()(x)
        skips.append(x)
        x = layers.MaxPool2D()(x)
    x = layers.Conv2D(256, 3, padding="same", activation="relu")(x)
    for skip in reversed(skips):
        channels = skip.shape[-1]
        x = layers.Conv2DTranspose(channels, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    return keras.Model(taken, layers.Conv2D(5, 1, activation="softmax")(x))


def _tcn() -> Any:
    """Signals with causal dilated convolutions and layer norms."""
    from tensorflow import keras

    layers = keras.layers
    taken = x = keras.Input((512, 32))
    for dilation in (1, 2, 4, 8):
        y = layers.Conv1D(64, 3, padding="causal", dilation_rate=dilation, activation="relu")(x)
        y = layers.LayerNormalization()(y)
        y = layers.Conv1D(64, 3, padding="causal", dilation_rate=dilation)(y)
        x = layers.ReLU()(layers.Add()([y, layers.Conv1D(64, 1)(x)]))
    return keras.Model(taken, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def _signals() -> Any:
    """Strided and depthwise convolutions of a sensor's signal."""
    from tensorflow import keras

    layers = keras.layers
    taken = x = keras.Input((1024, 16))
    for channels in (32, 64, 128):
        x = layers.Conv1D(channels, 5, strides=2, padding="same")(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
        x = layers.MaxPool1D()(layers.DepthwiseConv1D(3, padding="same")(x))
    return keras.Model(taken, layers.Dense(10)(layers.Flatten()(x)))


def _video() -> Any:
    from tensorflow import keras

    layers = keras.layers
    taken = x = keras.Input((8, 56, 56, 3))
    for channels in (32, 64, 128):
        x = layers.Conv3D(channels, 3, padding="same")(x)
        x = layers.Activation("swish")(layers.BatchNormalization()(x))
        x = layers.MaxPool3D(2)(x)
    return keras.Model(taken, layers.Dense(10)(layers.GlobalAveragePooling3D()(x)))


def _super_resolution() -> Any:
    """PReLUs, separable convolutions, squeeze and excitation, upsampling."""
    from tensorflow import keras

    layers = keras.layers
    taken = keras.Input((96, 96, 3))
    x = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(48, 5, padding="same")(taken))
    for _ in range(3):
        y = layers.Conv2D(48, 3, padding="same")(x)
        y = layers.SeparableConv2D(48, 3, padding="same")(layers.PReLU(shared_axes=[1, 2])(y))
        excited = layers.GlobalAveragePooling2D(keepdims=True)(y)
        y = layers.Multiply()([y, layers.Dense(48, activation="sigmoid")(excited)])
        x = layers.Add()([x, y])
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Cropping2D(1)(layers.ZeroPadding2D(((1, 0), (0, 1)))(x))
    return keras.Model(taken, layers.Conv2D(3, 3, padding="same", activation="tanh")(x))


# EfficientNets and ConvNeXts are left out: tf2onnx makes inputs of their constants.
EXPORTS: dict[str, Callable[[], Any]] = {
    "keras_mobilenet": _application("MobileNet"),
    "keras_mobilenet_v2": _application("MobileNetV2"),
    "keras_mobilenet_v3_small": _application("MobileNetV3Small"),
    "keras_mobilenet_v3_large": _application("MobileNetV3Large"),
    "keras_resnet50": _application("ResNet50"),
    "keras_resnet50_v2": _application("ResNet50V2"),
    "keras_densenet121": _application("DenseNet121"),
    "keras_inception_v3": _application("InceptionV3", 299),
    "keras_xception": _application("Xception", 299),
    "keras_nasnet_mobile": _application("NASNetMobile"),
    "keras_unet": _unet,
    "keras_tcn": _tcn,
    "keras_signals": _signals,
    "keras_video": _video,
    "keras_super_resolution": _super_resolution,
}


def save(name: str, exporter: str, path: Path) -> None:
    """Write a network, and beside it `NAME.npz` with what it runs on.

    Parameters
    ----------
    name : str
        Out of `EXPORTS`.
    exporter : str
        "tf2onnx", or "unmoved" for the same without its optimizer.
    path : Path
        The file.
    """
    import tensorflow as tf
    from tf2onnx import convert, optimizer

    rng = np.random.default_rng(_SEED)
    network = EXPORTS[name]()
    for weights in network.weights:
        weights.assign(_drawn(rng, weights))
    shape = (1, *network.input_shape[1:])
    taken = [tf.TensorSpec(shape, tf.float32, name="x")]
    function = tf.function(lambda x: network(x, training=False), input_signature=taken)
    unmoved = mock.patch.object(optimizer, "optimize_graph", lambda graph, *_, **__: graph)
    with unmoved if exporter == "unmoved" else nullcontext():
        convert.from_function(function, input_signature=taken, opset=_OPSET, output_path=str(path))
    np.savez(path.with_suffix(".npz"), x=rng.standard_normal(shape, dtype=np.float32))


def _drawn(rng: np.random.Generator, weights: Any) -> np.ndarray:
    """Return kernels that keep the size of activations, and other parameters near their own."""
    shape, path = tuple(weights.shape), weights.path
    noise = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) > 1 and "kernel" in path:
        of_one_channel = "depthwise" in path
        inputs = np.prod(shape[:-2] if of_one_channel else shape[:-1])
        return noise * np.float32(_LESS * np.sqrt(2 / inputs))
    own = weights.numpy()
    return own if path.endswith("variance") else own + np.float32(0.1) * noise


def main() -> None:
    """Write the networks that are named, or all."""
    folder = Path(__file__).parents[1] / "build" / "wild" / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or EXPORTS:
        for exporter in EXPORTERS:
            save(name, exporter, folder / f"{name}_{exporter}.onnx")
            print(f"{name} {exporter}", flush=True)


if __name__ == "__main__":
    main()
