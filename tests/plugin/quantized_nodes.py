"""Models of one node on integers of 8 bits."""

from __future__ import annotations

import copy

import numpy as np
import onnx
from onnx import helper
from rewrites import Arrays, computed, runtime, several_nodes


class Node:
    """A node of quantized operands, the first of which is the input `x`."""

    def __init__(self, operator: str, dtype: str, *shape: int, domain: str = "") -> None:
        self.rng = np.random.default_rng(29)
        self.operator, self.dtype, self.domain = operator, dtype, domain
        self.x = self.integers(dtype, *shape)
        self.operands: list[str] = []
        self.constants: Arrays = {}

    def integers(self, dtype: str, *shape: int) -> np.ndarray:
        limits = np.iinfo(dtype)
        return self.rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)

    def put(self, value: np.ndarray | None) -> None:
        """Append a constant operand; None leaves it out."""
        name = "" if value is None else f"c{len(self.operands)}"
        self.operands.append(name)
        if value is not None:
            self.constants[name] = value

    def steps(self, scale: object, zero: int | None, dtype: str | None = None) -> None:
        """Append a scale and a zero point, of as many elements."""
        scale = np.asarray(scale, "float32")
        self.put(scale)
        self.put(None if zero is None else np.full(scale.shape, zero, dtype or self.dtype))

    def data(self, scale: float, zero: int | None) -> None:
        self.operands.append("x")
        self.steps(scale, zero)

    def model(self, opset: int = 13, **attributes: object) -> onnx.ModelProto:
        names = list(self.operands)
        while not names[-1]:
            del names[-1]
        node = helper.make_node(self.operator, names, ["y"], "it", domain=self.domain, **attributes)
        model = several_nodes([node], {"x": self.x}, self.constants, opset)
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return model

    def check(self, **attributes: object) -> None:
        """Compare with ONNX Runtime, which does not infer types without zero points."""
        model = self.model(**attributes)
        plain = copy.deepcopy(self)
        for index, name in enumerate(plain.operands):
            if not name:
                plain.operands[index] = f"c{index}"
                plain.constants[f"c{index}"] = np.array(0, self.dtype)
        ours, theirs = computed(model, self.x), runtime(plain.model(**attributes), self.x)
        assert ours.dtype == theirs.dtype
        difference = np.abs(ours.astype(int) - theirs.astype(int))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.02
        assert np.unique(theirs).size > 3, "all elements lie beyond the range"
