"""Transformer encoders of random weights, as exporters write BERT and its kind, in fp32 and int8.

`ENCODERS` has their sizes. Weights are those of a seed, so files are the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR = 17, 8
_SEED = 11
_EPSILON = 1e-12
# Added to the scores of what is masked: far below any score, and finite.
_MASKED = np.float32(-1e4)


@dataclass(frozen=True)
class Encoder:
    """Sizes of an encoder.

    Parameters
    ----------
    hidden, heads, layers : int
        As in BERT: the inner products of a layer are 4 * hidden wide.
    seq : int
        Tokens of a sequence.
    vocabulary : int
        Tokens that there are.
    """

    hidden: int
    heads: int
    layers: int
    seq: int = 128
    vocabulary: int = 2000


ENCODERS = {"minilm_l6": Encoder(384, 12, 6), "bert_base": Encoder(768, 12, 12)}


def save(encoder: Encoder, path: Path, is_open: bool = False) -> Path:
    """Write the model in fp32; return its path.

    Parameters
    ----------
    is_open : bool
        Leave the tokens of a sequence open, as "seq"; the encoder's number is the most.
    """
    onnx.save(_Graph(encoder, is_open).model(), path)
    return path


def save_quantized(model: Path, path: Path) -> Path:
    """Write the model with products of 8 bits, by ONNX Runtime's dynamic quantizer."""
    import onnxruntime.quantization as ort

    ort.quantize_dynamic(model, path, weight_type=ort.QuantType.QInt8)
    return path


class _Graph:
    """The nodes and weights of an encoder as they are put, each result by its name."""

    def __init__(self, encoder: Encoder, is_open: bool = False) -> None:
        self.sizes, self.is_open = encoder, is_open
        self.rng = np.random.default_rng(_SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        """Return the model: ids and mask of tokens to the last hidden states."""
        e = self.sizes
        length = "seq" if self.is_open else e.seq
        mask = self._mask("attention_mask")
        x = self._embedded("input_ids")
        for _ in range(e.layers):
            x = self._layer(x, mask)
        tokens = (
            helper.make_tensor_value_info(name, TensorProto.INT64, (1, length))
            for name in ("input_ids", "attention_mask")
        )
        result = helper.make_tensor_value_info(x, TensorProto.FLOAT, (1, length, e.hidden))
        graph = helper.make_graph(self.nodes, "encoder", list(tokens), [result], self.weights)
        sets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, ir_version=_IR, opset_imports=sets)

    def _put(self, operator: str, *operands: str, **attributes: object) -> str:
        result = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [result], name=result, **attributes))
        return result

    def _constant(self, values: np.ndarray) -> str:
        name = f"weights_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def _random(self, *shape: int, size: float = 0.02) -> str:
        return self._constant(size * self.rng.standard_normal(shape, dtype=np.float32))

    def _embedded(self, ids: str) -> str:
        e = self.sizes
        words = self._put("Gather", self._random(e.vocabulary, e.hidden, size=1.0), ids)
        places = self._random(1, e.seq, e.hidden)
        if self.is_open:
            first, axis = (self._constant(np.array([at])) for at in (0, 1))
            length = self._put("Gather", self._put("Shape", ids), axis)
            places = self._put("Slice", places, first, length, axis)
        return self._normalized(self._put("Add", words, places))

    def _mask(self, given: str) -> str:
        kept = self._put("Cast", given, to=TensorProto.FLOAT)
        kept = self._put("Unsqueeze", kept, self._constant(np.array([1, 2])))
        masked = self._put("Sub", self._constant(np.float32(1)), kept)
        return self._put("Mul", masked, self._constant(_MASKED))

    def _normalized(self, x: str) -> str:
        scale = self._constant(self.rng.uniform(0.5, 1.5, self.sizes.hidden).astype("float32"))
        shift = self._random(self.sizes.hidden)
        return self._put("LayerNormalization", x, scale, shift, axis=-1, epsilon=_EPSILON)

    def _dense(self, x: str, inputs: int, outputs: int) -> str:
        product = self._put("MatMul", x, self._random(inputs, outputs, size=inputs**-0.5))
        return self._put("Add", self._random(outputs), product)

    def _gelu(self, x: str) -> str:
        root = self._constant(np.float32(math.sqrt(2)))
        inner = self._put("Erf", self._put("Div", x, root))
        sum_ = self._put("Add", inner, self._constant(np.float32(1)))
        return self._put("Mul", self._put("Mul", x, sum_), self._constant(np.float32(0.5)))

    def _layer(self, x: str, mask: str) -> str:
        hidden = self.sizes.hidden
        attended = self._dense(self._attention(x, mask), hidden, hidden)
        x = self._normalized(self._put("Add", attended, x))
        inner = self._gelu(self._dense(x, hidden, 4 * hidden))
        return self._normalized(self._put("Add", self._dense(inner, 4 * hidden, hidden), x))

    def _attention(self, x: str, mask: str) -> str:
        e = self.sizes
        query, key, value = (self._dense(x, e.hidden, e.hidden) for _ in range(3))
        query, value = (self._by_head(each, [0, 2, 1, 3]) for each in (query, value))
        scores = self._put("MatMul", query, self._by_head(key, [0, 2, 3, 1]))
        root = self._constant(np.float32(math.sqrt(e.hidden // e.heads)))
        scores = self._put("Add", self._put("Div", scores, root), mask)
        mixed = self._put("MatMul", self._put("Softmax", scores, axis=-1), value)
        mixed = self._put("Transpose", mixed, perm=[0, 2, 1, 3])
        return self._put("Reshape", mixed, self._constant(np.array([1, -1, e.hidden])))

    def _by_head(self, x: str, order: list[int]) -> str:
        e = self.sizes
        shape = self._constant(np.array([1, -1, e.heads, e.hidden // e.heads]))
        return self._put("Transpose", self._put("Reshape", x, shape), perm=order)
